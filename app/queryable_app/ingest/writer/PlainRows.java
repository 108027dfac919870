package io.queryabletopics;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.python.streaming.PythonForeachWriter;

/**
 * Take rows in Spark's own layout.
 *
 * Spark converts each row, and each column, into an object for every `ForeachWriter` except a `PythonForeachWriter`. This class
 * extends that one for this reason alone: it overrides all of its methods, and runs no Python.
 */
public abstract class PlainRows extends PythonForeachWriter {
  PlainRows() {
    super(null, null);
  }

  abstract void take(InternalRow row);

  public void process(UnsafeRow row) {
    take(row);
  }

  public void process(Object row) {
    take((InternalRow) row);
  }
}
