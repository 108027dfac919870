package io.queryabletopics;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/** One of Spark's rows with the writer's columns, for the check of the writer: Python's numbers do not say whether they are int or long. */
public final class SampleRow {
  private SampleRow() {}

  public static Row of(int partition, long offset, long timestampMs, byte[] key, byte[] value) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, value};
    return RowFactory.create(columns);
  }
}
