package io.queryabletopics;

import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * Write the records of one Spark task under their groups' keys to the internal topic. `RekeyRun` numbers and sends them.
 *
 * The columns are those of RowWriter for an aggregate view; the key is that of the group.
 */
public final class RekeyWriter extends ForeachWriter {
  private static final long serialVersionUID = 1L;
  private static final int CONTRIBUTION = 7; // the column of the event time

  private final long run;
  private final boolean failsOnBad;
  private final Contribution contribution;

  private transient RekeyRun writes;

  public RekeyWriter(long run, boolean failsOnBad, Contribution contribution) {
    this.run = run;
    this.failsOnBad = failsOnBad;
    this.contribution = contribution;
  }

  public boolean open(long partitionId, long epochId) {
    writes = RekeyRun.of(run);
    return true;
  }

  public void process(Object object) {
    Row row = (Row) object;
    int partition = row.getInt(0);
    long offset = row.getLong(1);
    if (!row.isNullAt(6)) {
      if (failsOnBad) {
        throw new IllegalStateException("the record at offset " + offset + " of partition " + partition
            + " cannot be decoded (" + row.getString(6) + ") and onBadRecord is Fail");
      }
      writes.none(partition, offset, RekeyRun.BAD);
    } else if (row.getBoolean(5)) {
      writes.none(partition, offset, RekeyRun.DROPPED);
    } else if (row.isNullAt(3)) {
      writes.none(partition, offset, RekeyRun.NULL_KEY);
    } else {
      byte[] encoded = contribution.encoded(row, CONTRIBUTION);
      writes.row(partition, offset, 0, 1, row.getLong(2), (byte[]) row.get(3), encoded);
    }
  }

  public void close(Throwable error) {
    if (error == null && writes != null) {
      writes.flush();
    }
  }
}
