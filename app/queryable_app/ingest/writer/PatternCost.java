package io.queryabletopics;

/**
 * Estimate how often the parts of a regular expression are tried at one place of a text, by its counted repetitions.
 *
 * An empty part, such as `(){1000}`, is repeated without a look at a character, so that its steps cannot be counted while it
 * runs. The estimate counts each part once, and those in a repetition as often as it says.
 */
final class PatternCost {
  private static final long MANY = 1L << 40;

  private final String regex;
  private int at;

  private PatternCost(String regex) {
    this.regex = regex;
  }

  static long of(String regex) {
    PatternCost whole = new PatternCost(regex);
    long cost = 0;
    while (whole.at < regex.length()) { // a closing bracket too many ends a sequence
      cost = Math.min(MANY, cost + whole.sequence());
    }
    return cost;
  }

  /** Consume up to the end of the group, and its bracket. */
  private long sequence() {
    long cost = 0;
    long last = 0; // of the part that a repetition repeats, which `cost` already has once
    while (at < regex.length()) {
      char c = regex.charAt(at++);
      if (c == ')') {
        return cost;
      }
      if (c == '{') {
        long more = last * (repetitions() - 1);
        cost += Math.max(0, more);
        last += Math.max(0, more);
      } else if (c != '*' && c != '+' && c != '?') {
        last = c == '(' ? 1 + sequence() : 1;
        if (c == '\\') {
          at++;
        } else if (c == '[') {
          skipClass();
        }
        cost += last;
      }
      cost = Math.min(MANY, cost);
      last = Math.min(MANY, last);
    }
    return cost;
  }

  /** Consume the rest of `{n}`, `{n,}` or `{n,m}`, and return the greatest number in it; 1 for another brace. */
  private long repetitions() {
    long greatest = 1;
    long number = 0;
    while (at < regex.length()) {
      char c = regex.charAt(at++);
      if (c >= '0' && c <= '9') {
        number = Math.min(MANY >> 20, number * 10 + c - '0');
        greatest = Math.max(greatest, number);
      } else if (c == ',') {
        number = 0;
      } else {
        return greatest;
      }
    }
    return greatest;
  }

  private void skipClass() {
    while (at < regex.length()) {
      char c = regex.charAt(at++);
      if (c == ']') {
        return;
      }
      at += c == '\\' ? 1 : 0;
    }
  }
}
