#include "server/web/fields.hpp"

#include <doctest/doctest.h>

#include "server/web/attempts.hpp"
#include "server/web/secrets.hpp"

using namespace gpuwire::server::web;

TEST_CASE("a form's fields are decoded, and the first of a name counts") {
  const Fields fields = form_fields("session=12&csrf=a%2Bb+c&session=13&empty=&=nameless&%zz=%4");
  CHECK(number_field(fields, "session") == 12);
  CHECK(field(fields, "csrf") == "a+b c");
  CHECK(field(fields, "empty").empty());
  CHECK(field(fields, "%zz") == "%4");
  CHECK_FALSE(number_field(fields, "empty"));
  CHECK_FALSE(number_field(form_fields("session=12x"), "session"));
  CHECK_FALSE(number_field(form_fields("session=-1"), "session"));
  CHECK_FALSE(number_field(form_fields("session=99999999999999999999999"), "session"));
}

TEST_CASE("cookies are told apart, and a thousand of them are no more than the first few") {
  CHECK(field(cookie_fields("a=1; gpuwire_sign_in=abc=; b=2"), "gpuwire_sign_in") == "abc=");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += std::to_string(i) + "=x;";
  CHECK(cookie_fields(many).size() == kFieldsMax);
}

TEST_CASE("a form's token is of one cookie alone, and of no cookie there is none") {
  const std::string cookie = random_text(), other = random_text();
  CHECK(cookie != other);
  CHECK(is_csrf_of(cookie, csrf_of(cookie)));
  CHECK_FALSE(is_csrf_of(other, csrf_of(cookie)));
  CHECK_FALSE(is_csrf_of(cookie, cookie));
  CHECK_FALSE(is_csrf_of(cookie, ""));
  CHECK_FALSE(is_csrf_of("", csrf_of("")));
}

TEST_CASE("an address that guesses is refused for a while, and others are not") {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  Attempts attempts([&] { return now; });
  for (unsigned i = 0; i < kAttemptsAtOnce; ++i) CHECK(attempts.take("10.0.0.1"));
  CHECK_FALSE(attempts.take("10.0.0.1"));
  CHECK(attempts.take("10.0.0.2"));
  now += kAttemptRefill;
  CHECK(attempts.take("10.0.0.1"));
  CHECK_FALSE(attempts.take("10.0.0.1"));
  // Repeated successful sign-ins use no attempts.
  for (unsigned i = 0; i < 10 * kAttemptsAtOnce; ++i) {
    CHECK(attempts.take("10.0.0.3"));
    attempts.give_back("10.0.0.3");
  }
}

TEST_CASE("addresses without end share what the last ones have") {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  Attempts attempts([&] { return now; });
  size_t taken = 0;
  for (size_t i = 0; i < 2 * kAttemptAddressesMax; ++i) taken += attempts.take(std::to_string(i));
  CHECK(taken == kAttemptAddressesMax + kAttemptsAtOnce);
}
