package io.queryabletopics;

import org.slf4j.ILoggerFactory;
import org.slf4j.IMarkerFactory;
import org.slf4j.Logger;
import org.slf4j.helpers.BasicMarkerFactory;
import org.slf4j.helpers.NOPLogger;
import org.slf4j.helpers.NOPMDCAdapter;
import org.slf4j.spi.MDCAdapter;
import org.slf4j.spi.SLF4JServiceProvider;

/**
 * Provide the loggers of Spark, Hadoop and Kafka's clients: errors alone, as events. Log4j, which Spark brings, takes half a
 * second of CPU to read its configuration.
 */
public final class EventLogs implements SLF4JServiceProvider, ILoggerFactory {
  /**
   * The packages whose errors ingest reports itself. Stopping a query interrupts its tasks, and each would then log a stack
   * trace; why a query ended is in the query. Each client would report an unreachable broker once a second.
   */
  private static final String[] SILENT = {
    "org.apache.spark.sql.execution.streaming.",
    "org.apache.spark.sql.execution.datasources.v2.",
    "org.apache.spark.executor.",
    "org.apache.spark.scheduler.",
    "org.apache.spark.util.",
    "org.apache.spark.TaskContextImpl",
    "org.apache.spark.sql.kafka010.",
    "org.apache.kafka.clients.",
  };

  public Logger getLogger(String name) {
    for (int i = 0; i < SILENT.length; i++) {
      if (name.startsWith(SILENT[i])) {
        return NOPLogger.NOP_LOGGER;
      }
    }
    return new EventLog(name);
  }

  public ILoggerFactory getLoggerFactory() {
    return this;
  }

  public IMarkerFactory getMarkerFactory() {
    return new BasicMarkerFactory();
  }

  public MDCAdapter getMDCAdapter() {
    return new NOPMDCAdapter(); // events have no context
  }

  public String getRequestedApiVersion() {
    return "2.0";
  }

  public void initialize() {}
}
