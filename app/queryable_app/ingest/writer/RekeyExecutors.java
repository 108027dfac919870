package io.queryabletopics;

import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Connect the executors' parts of a run to the driver's, by Spark's messages for plugins.
 *
 * A message is an array: what is asked, the run, and what it is about. A greeting is about nothing. Spark never sends a message
 * twice. If one fails, the source partition has no owner any more, and the run ends.
 */
public final class RekeyExecutors implements SparkPlugin {
  private static final String JOIN = "join", BORROW = "borrow", GIVE_BACK = "give back", REPORT = "report", GREET = "greet";

  private static volatile PluginContext driver; // null in the driver, and without executors

  public DriverPlugin driverPlugin() {
    return new Driver();
  }

  public ExecutorPlugin executorPlugin() {
    return new Executor();
  }

  /** Return whether this JVM is an executor's. */
  static boolean isExecutor() {
    return driver != null;
  }

  /** Return the topic of the run, the number of its partitions, the producer's settings, and the number of source partitions. */
  static Object[] join(long run) {
    return (Object[]) ask(new Object[] {JOIN, Long.valueOf(run)});
  }

  /** Return the source partition, which this executor owns from now on. */
  static RekeySource borrow(long run, int from) {
    return (RekeySource) ask(new Object[] {BORROW, Long.valueOf(run), Integer.valueOf(from)});
  }

  static void giveBack(long run, int from, RekeySource source) {
    ask(new Object[] {GIVE_BACK, Long.valueOf(run), Integer.valueOf(from), source});
  }

  /**
   * Report the progress of the source partitions that this executor owns, and why it cannot write, or null.
   *
   * @return the skips of these source partitions, or null if the run has ended
   */
  static Map report(long run, Map progress, String failure) {
    return (Map) ask(new Object[] {REPORT, Long.valueOf(run), progress, failure});
  }

  private static Object ask(Object[] message) {
    try {
      return driver.ask(message);
    } catch (Exception e) {
      throw new IllegalStateException("the driver refuses to " + message[0] + ": " + e.getMessage(), e);
    }
  }

  public static final class Executor implements ExecutorPlugin {
    /**
     * Send a message to the driver, so that Spark finds it now, or this executor ends. Spark looks for the driver once. If a
     * task did that and were interrupted, because its run ends, no task of this executor could reach the driver any more.
     */
    public void init(PluginContext context, Map extra) {
      try {
        context.send(new Object[] {GREET});
      } catch (java.io.IOException e) {
        throw new IllegalStateException("the driver cannot be reached", e);
      }
      driver = context;
    }

    public void shutdown() {
      driver = null;
    }
  }

  /** Spark calls `receive` in one thread. */
  public static final class Driver implements DriverPlugin {
    public Map init(SparkContext spark, PluginContext context) {
      return new java.util.HashMap();
    }

    public Object receive(Object message) {
      Object[] parts = (Object[]) message;
      if (GREET.equals(parts[0])) {
        return null;
      }
      long run = ((Long) parts[1]).longValue();
      if (REPORT.equals(parts[0])) {
        return RekeyRuns.note(run, (Map) parts[2], (String) parts[3]);
      }
      RekeyRun found = RekeyRuns.of(run);
      if (JOIN.equals(parts[0])) {
        return found.terms();
      }
      int from = ((Integer) parts[2]).intValue();
      if (BORROW.equals(parts[0])) {
        return found.lend(from);
      }
      found.takeBack(from, (RekeySource) parts[3]);
      return null;
    }
  }
}
