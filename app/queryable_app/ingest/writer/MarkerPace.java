package io.queryabletopics;

/**
 * Decide when a run of the rekey job writes markers. The caller brings the time.
 *
 * Markers after a rest go at once, and then at most every 50 ms while rows follow each other. The last ones of a burst do not wait
 * for that: a reader may wait for them. They go when nothing has been written for 2 ms.
 */
public final class MarkerPace {
  static final long PACE_NANOS = 50000000L, QUIET_NANOS = 2000000L;

  private long dueNanos;

  public MarkerPace(long nowNanos) {
    dueNanos = nowNanos;
  }

  /**
   * Return how long to wait before the caller looks again; 0: it writes the markers now.
   *
   * @param moved whether the run has advanced since the last look
   */
  public long waitNanos(long nowNanos, boolean moved) {
    long left = dueNanos - nowNanos;
    return !moved || left <= 0 ? 0 : Math.min(left, QUIET_NANOS);
  }

  /** Note that the markers are written. */
  public void written(long nowNanos) {
    dueNanos = nowNanos + PACE_NANOS;
  }
}
