package io.queryabletopics;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;

/** Connect one Spark task to serve's row socket. docs/protocols.md has the layout of the frames. */
final class RowConnection {
  private static final int PROTOCOL = 1;
  private static final byte HELLO = 0, END = 2;

  private final SocketChannel channel;
  private final int task;
  private final long epoch;

  RowConnection(String path, long generation, int task, long epoch) throws IOException {
    this.task = task;
    this.epoch = epoch;
    channel = SocketChannel.open(StandardProtocolFamily.UNIX);
    try {
      channel.connect(UnixDomainSocketAddress.of(path));
      write(allocate(32).putInt(25).put(HELLO).putInt(PROTOCOL).putLong(generation).putInt(task).putLong(epoch));
    } catch (IOException e) {
      close();
      throw e;
    }
  }

  /** Write what a buffer has. */
  void write(ByteBuffer frames) throws IOException {
    frames.flip();
    while (frames.hasRemaining()) {
      channel.write(frames);
    }
  }

  /** Return when serve has applied all that was written before. */
  void settle() throws IOException {
    write(allocate(32).putInt(13).put(END).putInt(task).putLong(epoch));
    if (channel.read(ByteBuffer.allocate(1)) != 1) {
      throw new IOException("serve closed the row socket: the query's generation is over, or serve stopped");
    }
  }

  void close() {
    try {
      channel.close();
    } catch (IOException ignored) {
      // The connection is abandoned anyway.
    }
  }

  static ByteBuffer allocate(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.LITTLE_ENDIAN);
  }
}
