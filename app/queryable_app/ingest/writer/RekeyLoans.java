package io.queryabletopics;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/** Know which source partitions of a run executors have borrowed, and how far they are. Its monitor guards it. */
final class RekeyLoans {
  private static final long SILENCE_NANOS = 30000000000L;

  private final Loan[] loans;

  private static final class Loan {
    private long[] progress;
    private long heardNanos = System.nanoTime();
    private long[] skip; // from and to, for the executor; or null

    private Loan(long[] progress) {
      this.progress = progress;
    }
  }

  RekeyLoans(int sources) {
    loans = new Loan[sources];
  }

  /** Note that an executor borrows a source partition, or fail if another one has it. */
  synchronized void begin(int from, long[] progress) {
    if (loans[from] != null) {
      throw new IllegalStateException("another executor writes source partition " + from);
    }
    loans[from] = new Loan(progress);
  }

  synchronized void end(int from) {
    if (loans[from] == null) {
      throw new IllegalStateException("no executor has borrowed source partition " + from);
    }
    loans[from] = null;
  }

  /** Return the progress of a source partition that is lent, or null. */
  synchronized long[] progress(int from) {
    return loans[from] == null ? null : loans[from].progress;
  }

  /** Keep a skip for the executor that has borrowed the source partition. Return whether one has. */
  synchronized boolean skip(int from, long begin, long reached) {
    if (loans[from] == null) {
      return false;
    }
    loans[from].skip = new long[] {begin, reached};
    return true;
  }

  /** Note the progress of an executor, by source partition. Return the skips of these source partitions. */
  synchronized Map note(Map progress) {
    HashMap skips = new HashMap();
    for (Iterator each = progress.entrySet().iterator(); each.hasNext();) {
      Map.Entry entry = (Map.Entry) each.next();
      Loan loan = loans[((Integer) entry.getKey()).intValue()];
      if (loan != null) {
        loan.progress = (long[]) entry.getValue();
        loan.heardNanos = System.nanoTime();
        if (loan.skip != null) {
          skips.put(entry.getKey(), loan.skip);
          loan.skip = null;
        }
      }
    }
    return skips;
  }

  /** Fail if an executor is silent that has a source partition, which no other JVM may write. */
  synchronized void check() {
    for (int from = 0; from < loans.length; from++) {
      if (loans[from] != null && System.nanoTime() - loans[from].heardNanos > SILENCE_NANOS) {
        throw new IllegalStateException("the executor of source partition " + from + " has sent no report for 30 s");
      }
    }
  }
}
