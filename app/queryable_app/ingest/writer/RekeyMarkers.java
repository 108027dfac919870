package io.queryabletopics;

import java.util.concurrent.locks.LockSupport;

/** Run the thread that writes the markers of a run when it has advanced, and reports from an executor to the driver. */
final class RekeyMarkers implements Runnable {
  private static final long REPORT_NANOS = 200000000L;

  private final RekeyRun run;
  private final boolean reports;
  private final Thread thread;
  private volatile boolean advanced;
  private volatile boolean asleep;

  /** @param reports whether this JVM is an executor's */
  RekeyMarkers(RekeyRun run, boolean reports) {
    this.run = run;
    this.reports = reports;
    thread = new Thread(this, "rekey-markers");
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /** Note that the run has advanced. A thread that is not asleep looks by itself, so that rows seldom wake it. */
  void advance() {
    if (!advanced) {
      advanced = true;
      if (asleep) {
        wake();
      }
    }
  }

  /** Let the thread look whether the run goes on. */
  void wake() {
    LockSupport.unpark(thread);
  }

  public void run() {
    try {
      MarkerPace pace = new MarkerPace(System.nanoTime());
      long reportAt = System.nanoTime();
      while (run.goesOn()) {
        if (reports && System.nanoTime() - reportAt >= 0) {
          reportAt = System.nanoTime() + REPORT_NANOS;
          run.report();
        }
        if (advanced) {
          hold(pace);
          run.writeMarkers();
          pace.written(System.nanoTime());
        } else {
          sleep();
        }
      }
    } catch (Exception e) {
      run.fail(e);
    }
    if (reports) {
      run.leave();
    }
  }

  private void hold(MarkerPace pace) {
    long wait = pace.waitNanos(System.nanoTime(), true);
    while (wait > 0 && run.goesOn()) {
      advanced = false;
      LockSupport.parkNanos(this, wait);
      wait = pace.waitNanos(System.nanoTime(), advanced);
    }
    advanced = false; // before the markers, which may miss a row that comes meanwhile
  }

  private void sleep() {
    asleep = true; // before the look at `advanced`: then either this thread or the one that advances sees the other's
    if (!advanced && run.goesOn()) {
      if (reports) {
        LockSupport.parkNanos(this, REPORT_NANOS);
      } else {
        LockSupport.park(this);
      }
    }
    asleep = false;
  }
}
