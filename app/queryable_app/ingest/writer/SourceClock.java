package io.queryabletopics;

import java.io.Serializable;
import java.nio.ByteBuffer;

/**
 * Track the event time of one source partition, in offset order: the rule of aggregates/clock.py. A test compares both.
 */
public final class SourceClock implements Serializable {
  private static final long serialVersionUID = 1L;
  static final int SIZE = 8 + 1 + 8;
  private static final int AHEAD_RECORDS = 10;
  private static final long TIME_MIN_MS = -62135596800000L, TIME_MAX_MS = 253402300799999L;
  private static final long NO_TIME_MS = Long.MIN_VALUE;

  private final long aheadMs;
  private long maxEventMs;
  private int aheadCount;
  private long aheadMinMs;

  /** @param aheadMs how far ahead of the clock a time is far ahead */
  public SourceClock(long maxEventMs, int aheadCount, long aheadMinMs, long aheadMs) {
    this.maxEventMs = maxEventMs;
    this.aheadCount = aheadCount;
    this.aheadMinMs = aheadMinMs;
    this.aheadMs = aheadMs;
  }

  /** Take the event time of the next record. */
  public void advance(long eventMs) {
    if (eventMs < TIME_MIN_MS || eventMs > TIME_MAX_MS) {
      return;
    }
    if (eventMs <= maxEventMs) {
      aheadCount = 0;
    } else if (maxEventMs != NO_TIME_MS && eventMs - maxEventMs <= aheadMs) {
      maxEventMs = eventMs;
      aheadCount = 0;
    } else {
      aheadMinMs = aheadCount > 0 ? Math.min(aheadMinMs, eventMs) : eventMs;
      aheadCount++;
      if (aheadCount == AHEAD_RECORDS) {
        maxEventMs = aheadMinMs;
        aheadCount = 0;
      }
    }
  }

  void put(ByteBuffer buffer) {
    buffer.putLong(maxEventMs).put((byte) aheadCount).putLong(aheadMinMs);
  }

  /** Return the clock as an envelope has it. */
  public byte[] encoded() {
    ByteBuffer buffer = ByteBuffer.allocate(SIZE);
    put(buffer);
    return buffer.array();
  }
}
