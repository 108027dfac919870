package io.queryabletopics;

import java.io.Serializable;

/**
 * Know what a run has written of one source partition. It has one owner at a time, which alone writes of the partition: the
 * driver, or the executor that reads it. Its monitor guards it.
 */
final class RekeySource implements Serializable {
  private static final long serialVersionUID = 1L;

  final long[] sequence; // of the next envelope, by internal partition
  final long[] marked; // the progress that each internal partition knows
  long next; // every record of an earlier offset is written
  long rows, nullKeys, bad, dropped;

  RekeySource(int partitions, long covered, long next) {
    sequence = new long[partitions];
    marked = new long[partitions];
    for (int i = 0; i < partitions; i++) {
      marked[i] = covered;
    }
    this.next = next;
  }

  /** Return the counts, and then the next offset. */
  synchronized long[] progress() {
    return new long[] {rows, nullKeys, bad, dropped, next};
  }
}
