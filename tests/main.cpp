// doctest's main, linked into every test program. HEDDLE_TEST_EXCLUDE holds patterns of test cases
// that are left out, as --test-case-exclude does: the sanitizers leave out what only calculates.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (const char* patterns = std::getenv("HEDDLE_TEST_EXCLUDE"))
    context.addFilter("test-case-exclude", patterns);
  return context.run();
}
