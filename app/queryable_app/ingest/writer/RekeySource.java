package io.queryabletopics;

import java.io.Serializable;
import java.util.Arrays;

/**
 * Know what a run has written of one source partition. It has one owner at a time, which alone writes of the partition: the
 * driver, or the executor that reads it. Its monitor guards it.
 */
public final class RekeySource implements Serializable {
  private static final long serialVersionUID = 1L;

  final long[] sequence; // of the next envelope, by internal partition
  final long[] marked; // the progress that each internal partition knows
  long next; // every record of an earlier offset is written
  long rows, nullKeys, bad, dropped;
  String lastBad; // the last record that could not be decoded, and why; null: none
  SourceClock clock; // null: the view has no windows
  long timed = -1; // the last record that has moved the clock
  private int owners; // how often it was handed over
  public KeyPlaces places; // null: rows add to groups, and never move
  final long[] reliesFrom; // by internal partition: what is left out relies on this run alone since this source offset

  static final long NOTHING = Long.MAX_VALUE;

  public RekeySource(int partitions, long covered, long next, KeyPlaces places) {
    this.places = places;
    reliesFrom = new long[partitions];
    Arrays.fill(reliesFrom, NOTHING);
    sequence = new long[partitions];
    marked = new long[partitions];
    for (int i = 0; i < partitions; i++) {
      marked[i] = covered;
    }
    this.next = next;
  }

  /** Note that another JVM becomes the owner. */
  public synchronized void handOver() {
    owners++;
  }

  /**
   * Use again what this JVM has remembered, if nothing was written since, except by this JVM.
   *
   * @param before the source partition as this JVM gave it back to the driver, which only lends; null: it never had it
   */
  public void recall(RekeySource before) {
    if (before != null && before.owners + 1 == owners) {
      places = before.places;
    }
  }

  /** Move the clock by the first row of a record that has a time. The caller holds the monitor. */
  void moveClock(long offset, long eventMs) {
    if (clock != null && offset > timed) {
      clock.advance(eventMs);
      timed = offset;
    }
  }

  /** Return the counts, and then the next offset. */
  synchronized long[] progress() {
    return new long[] {rows, nullKeys, bad, dropped, next};
  }
}
