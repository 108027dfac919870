package io.queryabletopics;

import com.codahale.metrics.MetricRegistry;
import java.util.Properties;
import org.apache.spark.SparkConf;
import org.apache.spark.metrics.sink.MetricsServlet;
import org.sparkproject.jetty.ee10.servlet.ServletContextHandler;

/** Replace the page of Spark's metrics, which Spark makes, with its web server's classes, even if there is no web server. */
public final class NoServlet extends MetricsServlet {
  public NoServlet(Properties properties, MetricRegistry registry) {
    super(properties, registry);
  }

  public ServletContextHandler[] getHandlers(SparkConf settings) {
    return new ServletContextHandler[0];
  }
}
