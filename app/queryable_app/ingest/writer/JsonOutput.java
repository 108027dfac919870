package io.queryabletopics;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.LocalDate;
import java.util.Base64;

/**
 * Write the JSON of one decoded value, by the mapping of docs/formats.md, which all formats share.
 *
 * Numbers are exact. Times of one field have the same number of digits, so that their text sorts as they do.
 */
final class JsonOutput {
  static final int DEPTH_MAX = 100; // json_text.DEPTH_MAX
  private static final int BYTES_MAX = 16 << 20;
  private static final int DECIMAL_BYTES_MAX = 400; // under 1000 digits: json_text.NUMBER_CHARACTERS_MAX
  private static final int SCALE_MAX = 900;
  private static final JsonFactory FACTORY = new JsonFactory();

  private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
  final JsonGenerator json;

  JsonOutput() throws IOException {
    json = FACTORY.createGenerator(new Bounded(bytes));
  }

  byte[] finish() throws IOException {
    json.close();
    return bytes.toByteArray();
  }

  void base64(byte[] data) throws IOException {
    json.writeString(Base64.getEncoder().encodeToString(data));
  }

  /** Write the number of an unscaled big-endian integer, with as many decimals as the scale says. */
  void decimal(byte[] unscaled, int scale) throws IOException {
    if (unscaled.length == 0) {
      throw new Undecodable("a decimal without digits");
    }
    if (unscaled.length > DECIMAL_BYTES_MAX || scale > SCALE_MAX) {
      throw new Undecodable("a number of more than 1000 characters");
    }
    json.writeNumber(new BigDecimal(new BigInteger(unscaled), scale).toPlainString());
  }

  void date(long days) throws IOException {
    json.writeString(LocalDate.ofEpochDay(days).toString());
  }

  /** Write a time of day. `digits` are those of a fraction of a second in which it is counted. */
  void time(long count, int digits) throws IOException {
    long unit = power(digits);
    if (count < 0 || count >= 86400L * unit) {
      throw new Undecodable("a time that no day has");
    }
    StringBuilder text = new StringBuilder(18);
    clock(text, count / unit, count % unit, digits);
    json.writeString(text.toString());
  }

  void timestamp(long count, int digits, String zone) throws IOException {
    long unit = power(digits);
    long seconds = Math.floorDiv(count, unit);
    StringBuilder text = new StringBuilder(32);
    text.append(LocalDate.ofEpochDay(Math.floorDiv(seconds, 86400L))).append('T');
    clock(text, Math.floorMod(seconds, 86400L), Math.floorMod(count, unit), digits);
    json.writeString(text.append(zone).toString());
  }

  /** Write a moment in UTC with 9 decimals. */
  void timestamp(long seconds, long nanos) throws IOException {
    StringBuilder text = new StringBuilder(32);
    text.append(LocalDate.ofEpochDay(Math.floorDiv(seconds, 86400L))).append('T');
    clock(text, Math.floorMod(seconds, 86400L), nanos, 9);
    json.writeString(text.append('Z').toString());
  }

  /** Write a length of time in seconds, with 0, 3, 6 or 9 decimals: as few as lose nothing. */
  void duration(long seconds, long nanos) throws IOException {
    StringBuilder text = new StringBuilder(32);
    text.append(seconds < 0 || nanos < 0 ? "-" : "").append(Math.abs(seconds));
    long fraction = Math.abs(nanos);
    if (fraction > 0) {
      int digits = fraction % 1000000L == 0 ? 3 : fraction % 1000L == 0 ? 6 : 9;
      padded(text.append('.'), fraction / power(9 - digits), digits);
    }
    json.writeString(text.append('s').toString());
  }

  private static void clock(StringBuilder text, long seconds, long fraction, int digits) {
    padded(text, seconds / 3600, 2);
    padded(text.append(':'), seconds / 60 % 60, 2);
    padded(text.append(':'), seconds % 60, 2);
    padded(text.append('.'), fraction, digits);
  }

  private static void padded(StringBuilder text, long number, int digits) {
    for (long least = power(digits - 1); least > 1 && number < least; least /= 10) {
      text.append('0');
    }
    text.append(number);
  }

  private static long power(int digits) {
    return digits == 3 ? 1000L : digits == 6 ? 1000000L : digits == 9 ? 1000000000L : digits == 8 ? 100000000L
        : digits == 5 ? 100000L : digits == 2 ? 100L : digits == 1 ? 10L : 1L;
  }

  /** Refuse to hold more than a record may become. */
  private static final class Bounded extends OutputStream {
    private final ByteArrayOutputStream into;

    Bounded(ByteArrayOutputStream into) {
      this.into = into;
    }

    public void write(int one) throws IOException {
      write(new byte[] {(byte) one}, 0, 1);
    }

    public void write(byte[] data, int from, int length) throws IOException {
      if (into.size() + length > BYTES_MAX) {
        throw new Undecodable("more than " + BYTES_MAX + " bytes as JSON");
      }
      into.write(data, from, length);
    }
  }
}
