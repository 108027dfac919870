package io.queryabletopics;

import org.apache.spark.SparkContext;
import org.apache.spark.rpc.RpcEnv;
import org.apache.spark.scheduler.ExternalClusterManager;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend;

/**
 * Run tasks on the executors that connect to the driver, whatever has started them. Spark finds this class as a service.
 *
 * The driver starts no executor and ends none, so it needs no rights where they run.
 */
public final class RekeyCluster implements ExternalClusterManager {
  private static final String MASTER = "executors", APPLICATION = "rekey";

  public boolean canCreate(String master) {
    return MASTER.equals(master);
  }

  public TaskScheduler createTaskScheduler(SparkContext spark, String master) {
    return new TaskSchedulerImpl(spark);
  }

  public SchedulerBackend createSchedulerBackend(SparkContext spark, String master, TaskScheduler scheduler) {
    return new Backend((TaskSchedulerImpl) scheduler, spark.env().rpcEnv());
  }

  public void initialize(TaskScheduler scheduler, SchedulerBackend backend) {
    ((TaskSchedulerImpl) scheduler).initialize(backend);
  }

  /** Executors authenticate with the name of the application, which they must know before they connect. */
  private static final class Backend extends CoarseGrainedSchedulerBackend {
    private Backend(TaskSchedulerImpl scheduler, RpcEnv rpc) {
      super(scheduler, rpc);
    }

    public String applicationId() {
      return APPLICATION;
    }
  }

  /** Return how many tasks the connected executors can run at the same time. */
  public static int slots(SparkContext spark) {
    return ((CoarseGrainedSchedulerBackend) spark.schedulerBackend()).totalCoreCount().get();
  }

  public static int executors(SparkContext spark) {
    return ((CoarseGrainedSchedulerBackend) spark.schedulerBackend()).totalRegisteredExecutors().get();
  }
}
