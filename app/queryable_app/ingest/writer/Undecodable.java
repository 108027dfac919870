package io.queryabletopics;

import java.io.IOException;

/** Report that a record cannot be decoded. The message is what status and dead letters say about it. */
public final class Undecodable extends IOException {
  private static final long serialVersionUID = 1L;

  public Undecodable(String message) {
    super(message);
  }

  /** It has no stack trace: a topic may have many such records, and the message says all. */
  public synchronized Throwable fillInStackTrace() {
    return this;
  }
}
