package io.queryabletopics;

import java.math.BigDecimal;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/** Build a Spark row with the writer's columns for the check of the writer, since a Python number is neither int nor long. */
public final class SampleRow {
  private SampleRow() {}

  public static Row of(int partition, long offset, long timestampMs, byte[] key, byte[] value) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, value};
    return RowFactory.create(columns);
  }

  /** Build a row of an aggregate view with the inputs `-lsn`, of which the number has a filter. */
  public static Row of(int partition, long offset, long timestampMs, byte[] key, long eventMs, boolean counts,
      long number, byte[] text, String decimal) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, null,
        Boolean.FALSE, null, Long.valueOf(eventMs), Boolean.TRUE, Boolean.valueOf(counts), Long.valueOf(number), text,
        new BigDecimal(decimal)};
    return RowFactory.create(columns);
  }
}
