package io.queryabletopics;

import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.errors.InterruptException;

/**
 * Let the tasks read a backlog in turns after the JVM's start, so many at a time that a core is left.
 *
 * The tasks run slowly until their code is compiled. A task for each partition would take the cores from the compilers, and from
 * serve, which applies the rows. A task that gets no turn within WAIT_MS_MAX, because another one cannot write its rows, reads on
 * without one. After the start all tasks read at the same time.
 */
public final class BacklogTurn {
  /** So many records without a pause are a backlog, and as many are read in a turn. */
  private static final int RECORDS = 1000;
  private static final long WAIT_MS_MAX = 250;
  private static final long START_NANOS = 30000000000L; // from the first reader on
  private static final long UNTIL_NANOS = System.nanoTime() + START_NANOS;
  private static final Semaphore TURNS = new Semaphore(Math.max(1, Runtime.getRuntime().availableProcessors() - 1), true);

  private final Semaphore turns;
  private final long untilNanos;
  private int records; // of this turn or, without one, since the last pause
  private boolean taken;

  BacklogTurn() {
    this(TURNS, UNTIL_NANOS);
  }

  public BacklogTurn(Semaphore turns, long untilNanos) {
    this.turns = turns;
    this.untilNanos = untilNanos;
  }

  /** Wait for a turn if there is a backlog, and no longer than given. Return whether the task has one for its next record. */
  public boolean await(long millis) {
    if (records >= RECORDS) {
      end();
      taken = System.nanoTime() - untilNanos < 0 && acquire(Math.min(millis, WAIT_MS_MAX));
    }
    records++;
    return taken;
  }

  private boolean acquire(long millis) {
    try {
      return turns.tryAcquire(millis, TimeUnit.MILLISECONDS);
    } catch (InterruptedException e) {
      throw new InterruptException(e);
    }
  }

  /** Leave the turn to another task: this one has no record at hand, or ends. */
  public void end() {
    records = 0;
    if (taken) {
      taken = false;
      turns.release();
    }
  }
}
