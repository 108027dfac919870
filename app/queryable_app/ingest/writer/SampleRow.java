package io.queryabletopics;

import java.math.BigDecimal;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;

/** Build a Spark row with the writer's columns for the check of the writer, since a Python number is neither int nor long. */
public final class SampleRow {
  private SampleRow() {}

  public static InternalRow of(int partition, long offset, long timestampMs, byte[] key, byte[] value) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, value};
    return new GenericInternalRow(columns);
  }

  /** Return the schema of a row of an aggregate view, as far as the writer uses it: the decimal's type. */
  public static StructType schema() {
    StructType schema = new StructType();
    for (int column = 0; column < 12; column++) {
      schema = schema.add("column" + column, DataTypes.BinaryType);
    }
    return schema.add("decimal", DataTypes.createDecimalType(38, 2));
  }

  /** Build a row of an aggregate view with the inputs `-lsn`, of which the number has a filter. */
  public static InternalRow of(int partition, long offset, long timestampMs, byte[] key, long eventMs, boolean counts,
      long number, byte[] text, String decimal) {
    Object[] columns = {Integer.valueOf(partition), Long.valueOf(offset), Long.valueOf(timestampMs), key, null,
        Boolean.FALSE, null, Long.valueOf(eventMs), Boolean.TRUE, Boolean.valueOf(counts), Long.valueOf(number), text,
        Decimal.apply(new BigDecimal(decimal))};
    return new GenericInternalRow(columns);
  }
}
