package io.queryabletopics;

import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The file system of Spark's checkpoints, which nobody but this process reads. Hadoop's own starts a `chmod` process for
 * every file that it writes, in the pause between two batches.
 */
public final class CheckpointFiles extends RawLocalFileSystem {
  public void setPermission(Path path, FsPermission permission) {}
}
