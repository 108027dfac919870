package io.queryabletopics;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.Serializable;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.temporal.ChronoField;
import java.time.temporal.TemporalAccessor;

/**
 * Find the time of an entry in its JSON: milliseconds since 1970, as a number or as text, or ISO 8601.
 *
 * A time without a zone is UTC, as in the parameters of reads (wire/times.py). The path is names joined by dots. Of a name that is
 * there twice the last counts, as for every parser behind the writer.
 */
public final class TimeField implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final long MIN_MS = -62135596800000L; // the year 1; aggregates/clock.py
  private static final long MAX_MS = 253402300799999L; // the end of the year 9999
  private static final int TEXT_MAX = 50;

  private static final DateTimeFormatter TIME = new DateTimeFormatterBuilder()
      .append(DateTimeFormatter.ISO_LOCAL_DATE_TIME)
      .optionalStart().appendOffset("+HH:MM:ss", "Z").optionalEnd()
      .optionalStart().appendOffset("+HHMMss", "Z").optionalEnd()
      .optionalStart().appendOffset("+HH", "Z").optionalEnd()
      .toFormatter();

  private final String field;
  private final String[] path;

  public TimeField(String field) {
    this.field = field;
    this.path = field.split("\\.");
  }

  /** Return the milliseconds since 1970. Throws Undecodable if the value has no time there. */
  public long of(byte[] json) throws IOException {
    JsonParser parser = Checks.parser(json);
    parser.nextToken();
    Object found = member(parser, 0);
    parser.close();
    if (found == null) {
      throw new Undecodable("the field " + field + ", the time of an entry, is absent or null");
    }
    long ms = found instanceof Long ? ((Long) found).longValue() : parsed((String) found);
    if (ms < MIN_MS || ms > MAX_MS) {
      throw new Undecodable("the field " + field + " is outside of the years 1 to 9999: write milliseconds since 1970");
    }
    return ms;
  }

  /** Return the problem of a value, or null. */
  String problem(byte[] json) throws IOException {
    try {
      of(json);
      return null;
    } catch (Undecodable e) {
      return "value: " + e.getMessage();
    }
  }

  /** Return what the path leads to from the value at the parser, which is read to its end: a Long, a String, or null. */
  private Object member(JsonParser parser, int depth) throws IOException {
    JsonToken token = parser.currentToken();
    if (depth == path.length) {
      if (token == JsonToken.VALUE_STRING) {
        return parser.getTextLength() > TEXT_MAX ? "" : parser.getText();
      }
      if (token == JsonToken.VALUE_NUMBER_INT) {
        boolean fits = parser.getTextLength() <= 20 && parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER;
        return fits ? (Object) Long.valueOf(parser.getLongValue()) : (Object) Long.valueOf(Long.MAX_VALUE);
      }
      parser.skipChildren();
      return token == JsonToken.VALUE_NULL ? null : "";
    }
    if (token != JsonToken.START_OBJECT) {
      parser.skipChildren();
      return null;
    }
    Object found = null;
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      boolean named = parser.currentName().equals(path[depth]);
      parser.nextToken();
      if (named) {
        found = member(parser, depth + 1);
      } else {
        parser.skipChildren();
      }
    }
    return found;
  }

  private long parsed(String text) throws Undecodable {
    try {
      int length = text.length();
      if (length > 0 && isWhole(text)) {
        return Long.parseLong(text);
      }
      if (length == 10) {
        return LocalDate.parse(text).atStartOfDay().toInstant(ZoneOffset.UTC).toEpochMilli();
      }
      String time = length > 10 && text.charAt(10) == ' ' ? text.substring(0, 10) + "T" + text.substring(11) : text;
      TemporalAccessor parts = TIME.parse(time);
      if (parts.isSupported(ChronoField.OFFSET_SECONDS)) {
        return OffsetDateTime.from(parts).toInstant().toEpochMilli();
      }
      return LocalDateTime.from(parts).toInstant(ZoneOffset.UTC).toEpochMilli();
    } catch (RuntimeException e) { // not a time, a number of more than 64 bits, or a year of as many
      throw new Undecodable("the field " + field + " is no time: write ISO 8601, or milliseconds since 1970");
    }
  }

  private static boolean isWhole(String text) {
    for (int i = text.charAt(0) == '-' ? 1 : 0; i < text.length(); i++) {
      if (text.charAt(i) < '0' || text.charAt(i) > '9') {
        return false;
      }
    }
    return true;
  }
}
