#include "server/config/validation.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "server/config/loader.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

TEST(ValidationTest, OriginsAndHostsHaveNothingButAHostAndAnOriginAPort) {
  ServerConfig config;
  config.models = {DefaultModelConfig("m")};
  config.http.allow_origins = {"https://chat.example:8443", "null"};
  config.http.allowed_hosts = {"chat.example"};
  ASSERT_EQ(ValidateServerConfig(config), absl::OkStatus());
  for (const char* wrong : {"/", "?", "#", "*", "@", " "}) {
    ServerConfig bad = config;
    bad.http.allow_origins[0] = absl::StrCat("https://chat", wrong, "example");
    EXPECT_THAT(ValidateServerConfig(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("http.allow_origins[0]: ")));
  }
  for (const char* wrong : {"/", "*", "@", " ", ":"}) {
    ServerConfig bad = config;
    bad.http.allowed_hosts[0] = absl::StrCat("chat", wrong, "example");
    EXPECT_THAT(ValidateServerConfig(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("http.allowed_hosts[0]: ")));
  }
}

TEST(ValidationTest, OriginsAndHostsHaveAllTheirParts) {
  ServerConfig config;
  config.models = {DefaultModelConfig("m")};
  config.http.allowed_hosts = {""};
  EXPECT_THAT(ValidateServerConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("http.allowed_hosts[0]: ")));
  for (const char* origin : {"", "chat.example", "://chat.example", "https://"}) {
    config.http.allow_origins = {origin};
    EXPECT_THAT(ValidateServerConfig(config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("http.allow_origins[0]: ")))
        << origin;
  }
}

// Otherwise every request of a chat would fail with an error about strings that it does not have.
TEST(ValidationTest, TheStopStringsOfAChatFormatAreAsLongAsThoseOfARequest) {
  ServerConfig config;
  config.models = {DefaultModelConfig("m")};
  config.models[0].chat_template = "custom";
  config.models[0].chat_format.stop = {std::string(256, 'x')};
  EXPECT_EQ(ValidateServerConfig(config), absl::OkStatus());
  config.models[0].chat_format.stop[0] += 'x';
  EXPECT_THAT(ValidateServerConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("models[0].chat_format.stop: must have strings of 1 to 256 ")));
}

TEST(ValidationTest, APortHasOnlyDigits) {
  ServerConfig config;
  config.models = {DefaultModelConfig("m")};
  config.listen_address = "host:8500";
  ASSERT_EQ(ValidateServerConfig(config), absl::OkStatus());
  for (const char* port : {" 8500", "+8500", "8500 ", ""}) {
    config.listen_address = absl::StrCat("host:", port);
    EXPECT_THAT(ValidateServerConfig(config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("listen_address: ")));
  }
}

TEST(ValidationTest, ThePasswordOfRedisNeedsItsAddress) {
  ServerConfig config;
  config.models = {DefaultModelConfig("m")};
  config.states.key_files = {"k"};
  config.states.redis.password_file = "p";
  EXPECT_THAT(ValidateServerConfig(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     HasSubstr("states.redis.address: must be")));
  config.states.redis.address = "redis:6379";
  EXPECT_EQ(ValidateServerConfig(config), absl::OkStatus());
}

TEST(ValidationTest, TheFolderOfTheConfigIsNoNameOfASocket) {
  const auto config =
      ParseServerConfig("models { path: 'm' } states { key_files: 'k' redis { address: 'unix:' } }",
                        "x.textproto", "/etc");
  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_THAT(ValidateServerConfig(*config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("states.redis.address: must name a socket")));
}

}  // namespace
}  // namespace aft::server
