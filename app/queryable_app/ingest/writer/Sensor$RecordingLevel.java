package org.apache.kafka.common.metrics;

import java.util.Locale;

/**
 * Say which metrics Kafka's clients record, in place of the class of this name in Kafka's client: the JVM finds this one first.
 *
 * Strategy: a client at the default level, INFO, records nothing. Its metrics have no reader here, and no setting of Kafka turns them
 * off; where most fetches have one record, they take a sixth of ingest's CPU. The answers at the other levels are Kafka's.
 */
public enum Sensor$RecordingLevel {
  INFO(0, "INFO"),
  DEBUG(1, "DEBUG"),
  TRACE(2, "TRACE");

  public static final int MAX_RECORDING_LEVEL_KEY = 2;

  public final String name;
  public final short id;

  Sensor$RecordingLevel(int id, String name) {
    this.id = (short) id;
    this.name = name;
  }

  public static Sensor$RecordingLevel forId(int id) {
    if (id < 0 || id > MAX_RECORDING_LEVEL_KEY) {
      throw new IllegalArgumentException("there is no recording level " + id + ", only 0 to " + MAX_RECORDING_LEVEL_KEY);
    }
    return values()[id];
  }

  public static Sensor$RecordingLevel forName(String name) {
    return valueOf(name.toUpperCase(Locale.ROOT));
  }

  /** Return whether a metric of this level is recorded by a client whose configured level has this id. */
  public boolean shouldRecord(int configured) {
    return configured != INFO.id && id <= configured;
  }
}
