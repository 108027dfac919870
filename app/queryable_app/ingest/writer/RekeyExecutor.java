package io.queryabletopics;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import org.apache.spark.executor.CoarseGrainedExecutorBackend;
import org.slf4j.LoggerFactory;

/**
 * Start an executor. The secret that it shares with the driver is the first line of standard input: other processes can read
 * arguments and variables.
 */
public final class RekeyExecutor {
  private RekeyExecutor() {}

  public static void main(String[] arguments) throws IOException {
    String secret = new BufferedReader(new InputStreamReader(System.in, "UTF-8")).readLine();
    System.setProperty("spark.authenticate.secret", secret);
    try {
      CoarseGrainedExecutorBackend.main(arguments);
    } catch (Exception e) {
      LoggerFactory.getLogger(RekeyExecutor.class).error("The executor cannot connect to the driver", e);
      System.exit(1);
    }
  }
}
