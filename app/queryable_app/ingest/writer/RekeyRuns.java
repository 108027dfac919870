package io.queryabletopics;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** Know the runs of this JVM. The job starts, watches and ends them here, and tasks and executors find them. */
public final class RekeyRuns {
  private static final int COUNTS = 4; // of `RekeyRun.progress`, before the offset
  private static final HashMap RUNS = new HashMap(); // run → RekeyRun

  /**
   * Start a run, before its query.
   *
   * @param sourceId Kafka's id of the source topic, which the first markers carry
   * @param covered by source partition: the offset from which the run covers it
   * @param starts  by source partition: the offset of the first record that the query reads
   * @param aheadMs how far ahead of a clock is far; 0: the view has no windows
   * @param clocks  by source partition four numbers: how many rows of the first record are not needed, and its clock
   * @param trusted by source partition: from where the places of keys are remembered (KeyPlaces); null: rows add to groups
   */
  public static void start(long run, String topic, int partitions, Map settings, String sourceId, long[] covered,
      long[] starts, long aheadMs, long[] clocks, long[] trusted) {
    RekeyRun started = new RekeyRun(run, topic, partitions, settings, covered.length, true);
    started.begin(sourceId.getBytes(StandardCharsets.UTF_8), covered, starts, aheadMs, clocks, trusted);
    synchronized (RUNS) {
      RUNS.put(Long.valueOf(run), started);
    }
    started.start();
  }

  /** Return the run, in an executor its part of it, or fail: a run never continues under another driver. */
  static RekeyRun of(long run) {
    synchronized (RUNS) {
      RekeyRun found = (RekeyRun) RUNS.get(Long.valueOf(run));
      if (found == null && RekeyExecutors.isExecutor()) {
        Object[] terms = RekeyExecutors.join(run);
        found = new RekeyRun(run, (String) terms[0], ((Integer) terms[1]).intValue(), (Map) terms[2],
            ((Integer) terms[3]).intValue(), false);
        RUNS.put(Long.valueOf(run), found);
        found.start();
      }
      if (found == null) {
        throw new IllegalStateException("the run has ended");
      }
      return found;
    }
  }

  /** Return why the run has ended by itself, or null. */
  public static String failure(long run) {
    return of(run).failure();
  }

  /** Return in how many executors a task of the run has begun. */
  public static int joined(long run) {
    return of(run).joined();
  }

  /** Return rows, null keys, bad records, dropped records, and then the next offset of each source partition. */
  public static String counts(long run) {
    RekeyRun found = of(run);
    long[] sums = new long[COUNTS];
    StringBuilder offsets = new StringBuilder();
    for (int from = 0; from < found.sources(); from++) {
      long[] progress = found.progress(from);
      for (int i = 0; i < COUNTS; i++) {
        sums[i] += progress[i];
      }
      offsets.append(' ').append(progress[COUNTS]);
    }
    return sums[0] + " " + sums[1] + " " + sums[2] + " " + sums[3] + offsets;
  }

  /** Return the last record that could not be decoded, and why; null: none. An executor's shows once it ends its task. */
  public static String lastBad(long run) {
    return of(run).lastBad;
  }

  /** Move over source offsets without a record, if the run stands there. */
  public static void skip(long run, int from, long begin, long reached) {
    of(run).skip(from, begin, reached);
  }

  /** End the run. What is not acknowledged yet may be lost. */
  public static void end(long run) {
    RekeyRun found;
    synchronized (RUNS) {
      found = (RekeyRun) RUNS.remove(Long.valueOf(run));
    }
    if (found != null) {
      found.end();
    }
  }

  /** Note the progress of an executor. Return the skips of its source partitions, or null if the run has ended. */
  static Map note(long run, Map progress, String failure) {
    RekeyRun found;
    synchronized (RUNS) {
      found = (RekeyRun) RUNS.get(Long.valueOf(run));
    }
    return found == null ? null : found.note(progress, failure);
  }
}
