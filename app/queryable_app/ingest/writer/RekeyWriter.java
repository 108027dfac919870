package io.queryabletopics;

import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * Write the records of one Spark task under their groups' keys to the internal topic. `RekeyRun` numbers and sends them.
 *
 * Columns: partition int, offset long, timestamp ms long, group key binary, dropped boolean, problem string (null: none), and
 * then the contribution as binary.
 */
public final class RekeyWriter extends ForeachWriter {
  private static final long serialVersionUID = 1L;

  private final long run;
  private final boolean failsOnBad;

  private transient RekeyRun writes;

  public RekeyWriter(long run, boolean failsOnBad) {
    this.run = run;
    this.failsOnBad = failsOnBad;
  }

  public boolean open(long partitionId, long epochId) {
    writes = RekeyRun.of(run);
    return true;
  }

  public void process(Object object) {
    Row row = (Row) object;
    int partition = row.getInt(0);
    long offset = row.getLong(1);
    if (!row.isNullAt(5)) {
      if (failsOnBad) {
        throw new IllegalStateException("the record at offset " + offset + " of partition " + partition
            + " cannot be decoded (" + row.getString(5) + ") and onBadRecord is Fail");
      }
      writes.none(partition, offset, RekeyRun.BAD);
    } else if (row.getBoolean(4)) {
      writes.none(partition, offset, RekeyRun.DROPPED);
    } else if (row.isNullAt(3)) {
      writes.none(partition, offset, RekeyRun.NULL_KEY);
    } else {
      byte[] contribution = (byte[]) row.get(6);
      writes.row(partition, offset, 0, 1, row.getLong(2), (byte[]) row.get(3), contribution, contribution.length);
    }
  }

  public void close(Throwable error) {
    if (error == null && writes != null) {
      writes.flush();
    }
  }
}
