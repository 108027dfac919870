package io.queryabletopics;

/**
 * Recognise most JSON documents in one pass over their bytes, in half of the time of a parser.
 *
 * Every accepted document is JSON by all rules of Checks. A document that is not accepted may still be JSON: the parser handles
 * escapes, characters beyond ASCII, long numbers and deep nesting, and it names the problem.
 */
public final class PlainJson {
  private static final int DEPTH_MAX = 60; // one bit of a long for each level
  private static final int NUMBER_CHARACTERS_MAX = 100;

  private final byte[] data;
  private int at;

  private PlainJson(byte[] data) {
    this.data = data;
  }

  public static boolean accepts(byte[] data) {
    return new PlainJson(data).document();
  }

  private boolean document() {
    long objects = 0; // bit n: an object, not an array, is open at depth n
    int depth = 0;
    while (true) {
      int c = next();
      if (c == '{' || c == '[') {
        if (++depth > DEPTH_MAX) {
          return false;
        }
        objects = c == '{' ? objects | 1L << depth : objects & ~(1L << depth);
        int first = next();
        if (first != (c == '{' ? '}' : ']')) {
          at--;
          if (c == '{' && !name()) {
            return false;
          }
          continue;
        }
        depth--;
      } else if (!(c == '"' ? string() : scalar(c))) {
        return false;
      }
      while (depth > 0) { // after a value
        boolean inObject = (objects & 1L << depth) != 0;
        c = next();
        if (c == ',') {
          if (inObject && !name()) {
            return false;
          }
          break;
        }
        if (c != (inObject ? '}' : ']')) {
          return false;
        }
        depth--;
      }
      if (depth == 0) {
        return next() < 0;
      }
    }
  }

  /** Consume and return the next byte that is no space; -1 at the end. */
  private int next() {
    while (at < data.length) {
      int c = data[at++];
      if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
        return c < 0 ? 0 : c;
      }
    }
    at++; // as if one byte more had been read, so that stepping back is always right
    return -1;
  }

  private boolean name() {
    return next() == '"' && string() && next() == ':';
  }

  /** Continue after the opening quote. */
  private boolean string() {
    while (at < data.length) {
      int c = data[at++];
      if (c == '"') {
        return true;
      }
      if (c < ' ' || c == '\\') {
        return false;
      }
    }
    return false;
  }

  private boolean scalar(int first) {
    if (first == 't') {
      return word("rue");
    }
    if (first == 'f') {
      return word("alse");
    }
    if (first == 'n') {
      return word("ull");
    }
    return (first == '-' || isDigit(first)) && number();
  }

  private boolean word(String rest) {
    for (int i = 0; i < rest.length(); i++) {
      if (at >= data.length || data[at++] != rest.charAt(i)) {
        return false;
      }
    }
    return true;
  }

  private boolean number() {
    int start = --at;
    if (data[at] == '-') {
      at++;
    }
    if (at < data.length && data[at] == '0') {
      at++;
    } else if (!digits()) {
      return false;
    }
    if (at < data.length && data[at] == '.') {
      at++;
      if (!digits()) {
        return false;
      }
    }
    if (at < data.length && (data[at] == 'e' || data[at] == 'E')) {
      at++;
      if (at < data.length && (data[at] == '+' || data[at] == '-')) {
        at++;
      }
      if (!digits()) {
        return false;
      }
    }
    return at - start <= NUMBER_CHARACTERS_MAX;
  }

  private boolean digits() {
    int start = at;
    while (at < data.length && isDigit(data[at])) {
      at++;
    }
    return at > start;
  }

  private static boolean isDigit(int c) {
    return c >= '0' && c <= '9';
  }
}
