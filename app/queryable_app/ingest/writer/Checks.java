package io.queryabletopics;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import java.io.IOException;

/**
 * Check whether a record can be decoded in its declared formats, and name the problem if it cannot.
 *
 * Every record that passes can be answered as JSON: text is strict UTF-8, and a JSON value is exactly one document. The
 * rules of JSON are those of wire/json_text.py; tests compare both with tests/golden/json_values.json.
 */
public final class Checks {
  private static final int DEPTH_MAX = 100; // json_text.DEPTH_MAX
  private static final int NUMBER_CHARACTERS_MAX = 1000; // json_text.NUMBER_CHARACTERS_MAX
  private static final JsonFactory JSON = jsonFactory();

  private Checks() {}

  /** Return null for a good record. A null value is a tombstone and always good. */
  public static String problem(String keyFormat, byte[] key, String valueFormat, byte[] value) {
    if (!keyFormat.equals("string")) { // a string key may be any bytes: it can be read as base64url
      String problem = problem(keyFormat, key);
      if (problem != null) {
        return "key: " + problem;
      }
    }
    if (value == null) {
      return null;
    }
    String problem = problem(valueFormat, value);
    return problem == null ? null : "value: " + problem;
  }

  private static String problem(String format, byte[] data) {
    if (format.equals("json")) {
      return jsonProblem(data);
    }
    if (format.equals("string")) {
      return utf8Problem(data);
    }
    if (format.equals("int")) {
      return widthProblem(format, data, 4);
    }
    if (format.equals("long") || format.equals("double")) {
      return widthProblem(format, data, 8);
    }
    if (format.equals("uuid")) {
      return isUuid(data) ? null : "not a UUID in 36 characters";
    }
    return null; // bytes
  }

  private static String widthProblem(String format, byte[] data, int width) {
    return data.length == width ? null : data.length + " bytes, but the format " + format + " has " + width;
  }

  private static boolean isUuid(byte[] data) {
    if (data.length != 36) {
      return false;
    }
    for (int i = 0; i < 36; i++) {
      int c = data[i];
      boolean dash = i == 8 || i == 13 || i == 18 || i == 23;
      boolean hex = c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F';
      if (dash ? c != '-' : !hex) {
        return false;
      }
    }
    return true;
  }

  /** Check strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
  static String utf8Problem(byte[] data) {
    int i = 0;
    while (i < data.length) {
      int lead = data[i];
      if (lead >= 0) {
        i++;
        continue;
      }
      lead &= 0xff;
      int more;
      int lowest = 0x80;
      int highest = 0xbf;
      if (lead >= 0xc2 && lead <= 0xdf) {
        more = 1;
      } else if (lead >= 0xe0 && lead <= 0xef) {
        more = 2;
        lowest = lead == 0xe0 ? 0xa0 : 0x80;
        highest = lead == 0xed ? 0x9f : 0xbf;
      } else if (lead >= 0xf0 && lead <= 0xf4) {
        more = 3;
        lowest = lead == 0xf0 ? 0x90 : 0x80;
        highest = lead == 0xf4 ? 0x8f : 0xbf;
      } else {
        return "not UTF-8 at byte " + i;
      }
      for (int n = 1; n <= more; n++) {
        int next = i + n < data.length ? data[i + n] & 0xff : 0;
        if (next < lowest || next > highest) {
          return "not UTF-8 at byte " + i;
        }
        lowest = 0x80;
        highest = 0xbf;
      }
      i += more + 1;
    }
    return null;
  }

  static String jsonProblem(byte[] data) {
    if (PlainJson.accepts(data)) {
      return null;
    }
    // Jackson guesses the encoding: it would accept UTF-16, which has zero bytes, and skip a byte order mark.
    if (data.length > 0 && (data[0] == (byte) 0xef || data[0] == 0) || data.length > 1 && data[1] == 0) {
      return "not JSON at byte 0";
    }
    String problem = utf8Problem(data);
    if (problem != null) {
      return problem;
    }
    try {
      JsonParser parser = parser(data);
      int documents = 0;
      int depth = 0;
      while (true) {
        JsonToken token = parser.nextToken();
        if (token == null) {
          return documents == 1 ? null : documents == 0 ? "empty, which is not JSON" : "more than one JSON document";
        }
        if (token.isStructStart()) {
          if (++depth > DEPTH_MAX) {
            return "nested deeper than " + DEPTH_MAX;
          }
        } else if (token.isNumeric()) {
          if (parser.getTextLength() > NUMBER_CHARACTERS_MAX) {
            return "a number of more than " + NUMBER_CHARACTERS_MAX + " characters";
          }
        } else if (token.isStructEnd()) {
          depth--;
        }
        if (depth == 0) {
          documents++;
        }
      }
    } catch (JsonProcessingException e) {
      long at = e.getLocation() == null ? -1 : e.getLocation().getByteOffset();
      return "not JSON" + (at < 0 ? "" : " at byte " + at);
    } catch (IOException e) {
      return "not JSON";
    }
  }

  static JsonParser parser(byte[] json) throws IOException {
    return JSON.createParser(json, 0, json.length);
  }

  static JsonFactory jsonFactory() {
    JsonFactory factory = new JsonFactory();
    // Field names of records are data: interning them is a leak, and many equal hashes are no attack.
    factory.disable(JsonFactory.Feature.INTERN_FIELD_NAMES);
    factory.disable(JsonFactory.Feature.FAIL_ON_SYMBOL_HASH_OVERFLOW);
    // Jackson's own bounds are off: they change with its version, and the Python checks lack them. The broker bounds a record's size.
    factory.setStreamReadConstraints(
        StreamReadConstraints.builder()
            .maxNestingDepth(Integer.MAX_VALUE)
            .maxNumberLength(Integer.MAX_VALUE)
            .maxNameLength(Integer.MAX_VALUE)
            .maxStringLength(Integer.MAX_VALUE)
            .build());
    return factory;
  }
}
