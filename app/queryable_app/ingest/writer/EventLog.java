package io.queryabletopics;

import com.fasterxml.jackson.core.io.JsonStringEncoder;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import org.slf4j.Marker;
import org.slf4j.event.Level;
import org.slf4j.helpers.LegacyAbstractLogger;
import org.slf4j.helpers.MessageFormatter;

/** Write each error as one JSON line on standard error, as the node's other events are. */
final class EventLog extends LegacyAbstractLogger {
  private static final long serialVersionUID = 1L;
  private static final DateTimeFormatter TIME =
      DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'+00:00'").withZone(ZoneOffset.UTC);

  EventLog(String name) {
    this.name = name;
  }

  public boolean isTraceEnabled() {
    return false;
  }

  public boolean isDebugEnabled() {
    return false;
  }

  public boolean isInfoEnabled() {
    return false;
  }

  public boolean isWarnEnabled() {
    return false;
  }

  public boolean isErrorEnabled() {
    return true;
  }

  protected String getFullyQualifiedCallerName() {
    return null; // events do not say which line logged them
  }

  protected void handleNormalizedLoggingCall(Level level, Marker marker, String pattern, Object[] arguments, Throwable cause) {
    String message = MessageFormatter.basicArrayFormat(pattern, arguments);
    System.err.println(line(Instant.now(), name, message, cause));
  }

  private static String line(Instant time, String name, String message, Throwable cause) {
    JsonStringEncoder json = JsonStringEncoder.getInstance();
    StringBuilder line = new StringBuilder("{\"time\":\"").append(TIME.format(time));
    line.append("\",\"level\":\"error\",\"event\":\"jvm\",\"logger\":\"").append(name.substring(name.lastIndexOf('.') + 1));
    line.append("\",\"message\":\"").append(json.quoteAsString(String.valueOf(message)));
    String why = cause == null || cause.getMessage() == null ? "" : cause.getMessage();
    return line.append("\",\"cause\":\"").append(json.quoteAsString(why)).append("\"}").toString();
  }
}
