package io.queryabletopics;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/** Build a Spark row with the writer's columns for the check of the writer, since a Python number is neither int nor long. */
public final class SampleRow {
  private SampleRow() {}

  public static Row of(int partition, long offset, long timestampMs, byte[] key, byte[] value) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, value};
    return RowFactory.create(columns);
  }
}
