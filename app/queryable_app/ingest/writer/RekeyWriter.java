package io.queryabletopics;

import java.util.BitSet;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Write the records of one Spark task under the keys of their rows to the internal topic. `RekeyRun` numbers and sends them.
 *
 * The columns are those of RowWriter, and the key is that of the row. A latest-value view also has the record's key.
 */
public final class RekeyWriter extends PlainRows {
  private static final long serialVersionUID = 1L;
  private static final int EVENT_MS = 7;
  private static final int RECORD_KEY = 7;

  private final long run;
  private final boolean failsOnBad;
  private final Contribution contribution;
  private final int rowColumn;

  private transient RekeyRun writes;
  private transient BitSet sources;

  /**
   * @param contribution encodes what a record adds to its group; null: a view of latest values
   * @param rowColumn the column of the row's index in its record; the number of rows follows. -1: each record gives one row
   */
  public RekeyWriter(long run, boolean failsOnBad, Contribution contribution, int rowColumn) {
    this.run = run;
    this.failsOnBad = failsOnBad;
    this.contribution = contribution;
    this.rowColumn = rowColumn;
  }

  public boolean open(long partitionId, long epochId) {
    writes = RekeyRuns.of(run);
    sources = new BitSet();
    return true;
  }

  void take(InternalRow row) {
    int partition = row.getInt(0);
    sources.set(partition);
    long offset = row.getLong(1);
    int index = rowColumn < 0 ? 0 : row.getInt(rowColumn);
    int count = rowColumn < 0 ? 1 : row.getInt(rowColumn + 1);
    if (!row.isNullAt(6)) {
      if (failsOnBad) {
        throw new IllegalStateException("the record at offset " + offset + " of partition " + partition
            + " cannot be decoded (" + row.getUTF8String(6).toString() + ") and onBadRecord is Fail");
      }
      writes.bad(partition, offset, index, count, row.getUTF8String(6).toString());
    } else if (contribution == null) {
      byte[] key = row.isNullAt(3) ? null : row.getBinary(3);
      byte[] value = row.isNullAt(4) ? null : row.getBinary(4);
      byte[] recordKey = row.isNullAt(RECORD_KEY) ? null : row.getBinary(RECORD_KEY);
      int why = row.getBoolean(5) ? RekeyRun.DROPPED : value == null ? RekeyRun.TOMBSTONE : RekeyRun.NULL_KEY;
      writes.latest(partition, offset, row.getLong(2), key, recordKey, value, why);
    } else if (row.getBoolean(5)) {
      writes.none(partition, offset, index, count, RekeyRun.DROPPED);
    } else if (row.isNullAt(3)) {
      writes.noGroup(partition, offset, index, count, row.getLong(EVENT_MS));
    } else {
      byte[] encoded = contribution.encoded(row);
      writes.row(partition, offset, index, count, row.getLong(2), row.getLong(EVENT_MS), row.getBinary(3), encoded);
    }
  }

  public void close(Throwable error) {
    if (error == null && writes != null) {
      writes.flush();
      for (int from = sources.nextSetBit(0); from >= 0; from = sources.nextSetBit(from + 1)) {
        writes.finish(from);
      }
    }
  }
}
