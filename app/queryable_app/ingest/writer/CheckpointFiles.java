package io.queryabletopics;

import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Write the files of Spark's checkpoints, which only this process reads. Hadoop's file system starts a `chmod` process for
 * every file that it writes, in the pause between two batches.
 */
public final class CheckpointFiles extends RawLocalFileSystem {
  public void setPermission(Path path, FsPermission permission) {}
}
