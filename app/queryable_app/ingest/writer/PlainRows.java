package io.queryabletopics;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.python.streaming.PythonForeachWriter;

/**
 * Take rows as Spark computes them. Spark makes an object of each row, and of each column, for every writer but that of Python's
 * own `foreach`, so this one passes for it. It uses nothing of it, and runs no Python.
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
