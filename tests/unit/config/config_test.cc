#include "server/config/config.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aft/config/v1/clients.pb.h"
#include "aft/config/v1/field_options.pb.h"
#include "aft/config/v1/server_config.pb.h"
#include "client/lib/address.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/config/fields.h"
#include "server/config/loader.h"
#include "server/config/validation.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ServerConfig Parse(const std::string& text) {
  const absl::StatusOr<ServerConfig> config = ParseServerConfig(text, "test", "/base");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ServerConfig();
}

// Calls `visit` for every field of `message` and of the messages inside it. Passes the path of the
// field and the message that has it.
using Visit = std::function<void(const std::string&, Message&, const FieldDescriptor*)>;
void VisitFields(const std::string& path, Message& message, const Visit& visit) {
  const auto& fields = *message.GetReflection();
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor* field = message.GetDescriptor()->field(f);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      visit(path + field->name(), message, field);
    } else if (!field->is_repeated()) {
      VisitFields(path + field->name() + ".", *fields.MutableMessage(&message, field), visit);
    } else {
      if (fields.FieldSize(message, field) == 0) fields.AddMessage(&message, field);
      VisitFields(path + field->name() + "[0].", *fields.MutableRepeatedMessage(&message, field, 0),
                  visit);
    }
  }
}

bool IsInteger(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
         field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
}

void SetNumber(Message& message, const FieldDescriptor* field, int64_t value) {
  const auto& fields = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    fields.SetInt32(&message, field, static_cast<int32_t>(value));
  } else {
    fields.SetInt64(&message, field, value);
  }
}

ServerConfig Valid() { return Parse("models { path: 'm' }"); }

TEST(ConfigLoaderTest, AnEmptyFileGivesTheDefaults) {
  const ServerConfig config = Parse("");
  EXPECT_EQ(config.listen_address, "127.0.0.1:8500");
  EXPECT_EQ(config.metrics_address, "127.0.0.1:8501");
  EXPECT_TRUE(config.models.empty());
  EXPECT_EQ(config.drain.grace.count(), 30'000);
  EXPECT_EQ(config.log.format, "logfmt");
}

TEST(ConfigLoaderTest, PrintsTheFieldsThatDifferFromTheirDefaults) {
  EXPECT_EQ(FormatChangedConfig(Parse("")), "");
  EXPECT_EQ(FormatChangedConfig(Parse("listen_address: '127.0.0.1:8500' metrics_address: '' "
                                      "models { path: '/m' slots: 3 } models { path: '/n' } "
                                      "log { level: 'info' } drain { grace_ms: 0 }")),
            "metrics_address: \"\"\n"
            "models {\n  name: \"m\"\n  path: \"/m\"\n  slots: 3\n}\n"
            "models {\n  name: \"n\"\n  path: \"/n\"\n}\n"
            "drain {\n  grace_ms: 0\n}\n");
}

TEST(ConfigLoaderTest, ReadsAndPrintsEveryField) {
  pb::ServerConfig message;
  int last = 0;  // No two fields have the same value.
  VisitFields("", message, [&](const std::string&, Message& in, const FieldDescriptor* field) {
    const auto& fields = *in.GetReflection();
    const std::string text = absl::StrCat("/v", ++last);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      fields.SetBool(&in, field, field->options().GetExtension(pb::default_) != "true");
    } else if (IsInteger(field)) {
      field->is_repeated() ? fields.AddInt64(&in, field, last) : SetNumber(in, field, last);
    } else if (field->is_repeated()) {
      for (const char* end : {"a", "b"}) fields.AddString(&in, field, text + end);
    } else {
      fields.SetString(&in, field, text);
    }
  });
  std::string text;
  TextFormat::PrintToString(message, &text);
  const ServerConfig config = Parse(text);
  EXPECT_EQ(FormatEffectiveConfig(config), text);
  EXPECT_EQ(FormatChangedConfig(config), text);
  EXPECT_EQ(config.models.at(0).checkpoint_dir, message.models(0).path());
  EXPECT_EQ(config.models.at(0).slots, message.models(0).slots());
  EXPECT_EQ(config.limits.max_queued_requests, message.limits().max_queued_requests());
  EXPECT_EQ(config.drain.grace.count(), message.drain().grace_ms());
}

TEST(ConfigLoaderTest, ModelPathsAreRelativeToTheConfigFile) {
  EXPECT_EQ(Parse("models { path: '../a/b/' }").models[0].checkpoint_dir, "/base/../a/b");
  EXPECT_EQ(Parse("models { path: '../zoo/austen/' }").models[0].name, "austen");
  EXPECT_EQ(Parse("models { path: '/abs/m' }").models[0].checkpoint_dir, "/abs/m");
}

TEST(ConfigLoaderTest, AModelIsNamedAfterItsFolderAlsoForRelativePaths) {
  const std::filesystem::path here = std::filesystem::current_path();
  EXPECT_EQ(DefaultModelConfig(".").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("./").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("..").name, here.parent_path().filename());
  EXPECT_EQ(DefaultModelConfig("a/..").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("a/./b//").name, "b");
  EXPECT_EQ(DefaultModelConfig(".").checkpoint_dir, ".");
  EXPECT_EQ(DefaultModelConfig("/").name, "");  // the config must give a name
}

TEST(ConfigLoaderTest, UnknownFieldsAndSyntaxErrorsNameFileLineAndColumn) {
  const auto error = [](const std::string& text) {
    return std::string(ParseServerConfig(text, "a.textproto", "").status().message());
  };
  EXPECT_THAT(error("listen_address: 'x:1'\n  listen_adress: 'y'"),
              StartsWith("a.textproto:2:16: "));
  EXPECT_THAT(error("listen_adress: 'y'"), HasSubstr("listen_adress"));
  EXPECT_THAT(error("models { slots: many }"), StartsWith("a.textproto:1:17: "));
  EXPECT_THAT(error("models { slots: 99999999999 }"), StartsWith("a.textproto:1:17: "));
  EXPECT_THAT(error("models {"), StartsWith("a.textproto:1:9: "));
  EXPECT_THAT(error("\n\n}"), StartsWith("a.textproto:3:1: "));
}

TEST(ConfigLoaderTest, AFileThatCannotBeReadIsNamed) {
  const absl::Status missing = LoadServerConfig("no/such/file.textproto").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no/such/file.textproto"));
  EXPECT_FALSE(LoadServerConfig(std::filesystem::temp_directory_path()).ok());
}

TEST(ConfigLoaderTest, PathsInAFileAreRelativeToItsFolder) {
  const TempFolder folder;
  const std::string path = folder.File("server.textproto");
  std::ofstream(path) << "models { path: 'm' } states { key_files: 'k' folder: 'f' "
                         "redis { address: 'unix:r' password_file: 'p' } } "
                         "repository { folder: 'repository' }";
  const absl::StatusOr<ServerConfig> config = LoadServerConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].checkpoint_dir, folder.File("m"));
  EXPECT_EQ(config->states.key_files, std::vector<std::string>{folder.File("k")});
  EXPECT_EQ(config->states.folder, folder.File("f"));
  EXPECT_EQ(config->states.redis.address, "unix:" + folder.File("r"));
  EXPECT_EQ(config->states.redis.password_file, folder.File("p"));
  EXPECT_EQ(config->repository.folder, folder.File("repository"));
  EXPECT_EQ(Parse("states { redis { address: 'redis:6379' } }").states.redis.address, "redis:6379");
}

// Expects that the options of a field fit its type and that its unit fits its name.
void CheckOptions(const std::string& path, const FieldDescriptor* field) {
  const auto& options = field->options();
  const bool text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const bool number = !text && field->cpp_type() != FieldDescriptor::CPPTYPE_BOOL;
  const std::string unit = options.GetExtension(pb::unit);
  const std::map<std::string, std::string> units = {
      {"_us", "us"}, {"_ms", "ms"}, {"_s", "s"}, {"_bytes", "bytes"}, {"_tokens", "tokens"}};
  const auto named = std::find_if(units.begin(), units.end(), [&](const auto& each) {
    return absl::EndsWith(field->name(), each.first);
  });
  if (number && named != units.end()) {
    EXPECT_EQ(unit, named->second) << path;
  } else {
    EXPECT_TRUE(number ? unit == "count" || unit == "number" : unit.empty()) << path;
  }
  EXPECT_TRUE(text || (options.ExtensionSize(pb::value) == 0 && !options.HasExtension(pb::file) &&
                       !options.HasExtension(pb::required)))
      << path;
  EXPECT_TRUE(number || !(options.HasExtension(pb::min) || options.HasExtension(pb::min_field) ||
                          options.HasExtension(pb::max_field)))
      << path;
  EXPECT_FALSE(field->is_repeated() && options.HasExtension(pb::default_)) << path;
  for (const std::string& sibling :
       {options.GetExtension(pb::min_field), options.GetExtension(pb::max_field)}) {
    if (sibling.empty()) continue;
    const FieldDescriptor* other = field->containing_type()->FindFieldByName(sibling);
    ASSERT_TRUE(other != nullptr && other->cpp_type() == field->cpp_type()) << path;
  }
}

TEST(ConfigFieldsTest, OptionsFitTheirFieldsAndEveryNumberHasAUnit) {
  pb::ServerConfig server;
  pb::ClientsFile clients;
  for (Message* const file : {static_cast<Message*>(&server), static_cast<Message*>(&clients)}) {
    VisitFields("", *file, [&](const std::string& path, Message&, const FieldDescriptor* field) {
      CheckOptions(path, field);
    });
  }
}

TEST(ConfigDefaultsTest, TheDefaultsOfTheFieldOptionsApply) {
  pb::ServerConfig config = MessageOf(Parse("models { path: '/m' }"));
  VisitFields("", config,
              [](const std::string& path, Message& in_force, const FieldDescriptor* field) {
                if (field->is_repeated() || path == "models[0].name" || path == "models[0].path")
                  return;
                std::string expected = field->options().GetExtension(pb::default_);
                if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
                  expected = "\"" + expected + "\"";
                } else if (expected.empty()) {
                  expected = field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL ? "false" : "0";
                }
                std::string value;
                TextFormat::PrintFieldValueToString(in_force, field, -1, &value);
                EXPECT_EQ(value, expected) << path;
              });
}

TEST(ConfigDefaultsTest, ClientsConnectToTheAddressWhereTheServerListens) {
  EXPECT_EQ(ServerConfig().listen_address, client::kDefaultAddress);
}

// Configures Redis as the store of states.
void WithRedis(ServerConfig& config, const std::string& address = "127.0.0.1:6379") {
  config.states.key_files = {"k"};
  config.states.redis.address = address;
}

TEST(ConfigReloadTest, SomeFieldsMayChangeAndTheOthersAreNamed) {
  ServerConfig next = Valid();
  next.log.level = "debug";
  next.repository.latest_versions = 3;
  next.repository.versions = {1};
  next.repository.control = "anyone";
  next.repository.drain = std::chrono::milliseconds(1);
  next.repository.settings.slots = 1;
  EXPECT_EQ(CheckReload(Valid(), next), absl::OkStatus());
  const struct {
    const char* field;
    std::function<void(ServerConfig&)> change;
  } cases[] = {
      {"listen_address: ", [](ServerConfig& c) { c.listen_address = "localhost:1"; }},
      {"models[0].slots: 64 -> 3", [](ServerConfig& c) { c.models[0].slots = 3; }},
      {"models[0].path: ", [](ServerConfig& c) { c.models[0].checkpoint_dir += "2"; }},
      {"log.format: ", [](ServerConfig& c) { c.log.format = "json"; }},
      {"repository.folder: ", [](ServerConfig& c) { c.repository.folder = "r"; }},
      {"security.clients_file: ", [](ServerConfig& c) { c.security.clients_file = "f"; }},
      {"security.trusted_proxies[0]: ",
       [](ServerConfig& c) { c.security.trusted_proxies = {"::1"}; }},
  };
  for (const auto& refused : cases) {
    ServerConfig changed = next;
    refused.change(changed);
    const absl::Status status = CheckReload(Valid(), changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << refused.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refused.field));
  }
  next.limits.max_queued_requests = 0;
  EXPECT_EQ(CheckReload(Valid(), next).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ConfigValidationTest, TheDefaultsAreValid) {
  EXPECT_TRUE(ValidateServerConfig(Valid()).ok()) << ValidateServerConfig(Valid());
}

TEST(ConfigValidationTest, ANameMayHaveEveryAllowedCharacterAndLength) {
  for (const std::string& name :
       {std::string("a"), std::string("..."), std::string("A.z_0-9"), std::string(128, 'a')}) {
    ServerConfig config = Valid();
    config.models[0].name = config.models[0].version = name;
    EXPECT_TRUE(ValidateServerConfig(config).ok()) << ValidateServerConfig(config);
  }
}

TEST(ConfigValidationTest, EveryDeviceHasItsWeightFormats) {
  ServerConfig config = Valid();
  for (const char* format : {"stored", "fp32", "bf16", "int8"}) {
    config.models[0].weight_format = format;
    EXPECT_TRUE(ValidateServerConfig(config).ok()) << ValidateServerConfig(config);
  }
  config.models[0].device = "cuda:12";
  for (const char* format : {"stored", "fp32", "bf16", "fp16", "int8"}) {
    config.models[0].weight_format = format;
    EXPECT_TRUE(ValidateServerConfig(config).ok()) << ValidateServerConfig(config);
  }
}

TEST(ConfigValidationTest, EveryFieldOutOfRangeIsNamed) {
  using C = ServerConfig;
  const struct {
    const char* field;
    std::function<void(C&)> spoil;
  } cases[] = {
      {"listen_address: ", [](C& c) { c.listen_address = ""; }},
      {"listen_address: ", [](C& c) { c.listen_address = "localhost"; }},
      {"listen_address: ", [](C& c) { c.listen_address = ":80"; }},
      {"listen_address: ", [](C& c) { c.listen_address = "h:65536"; }},
      {"listen_address: ", [](C& c) { c.listen_address = "h:-1"; }},
      {"listen_address: ", [](C& c) { c.listen_address = "::1:80"; }},
      {"metrics_address: ", [](C& c) { c.metrics_address = "h:x"; }},
      {"http_address: ", [](C& c) { c.http_address = "h:x"; }},
      {"models: ", [](C& c) { c.models.clear(); }},
      {"models[0].path: ", [](C& c) { c.models[0].checkpoint_dir = ""; }},
      {"models[0].name: ", [](C& c) { c.models[0].name = ""; }},
      {"models[0].name: ", [](C& c) { c.models[0].name = "a/b"; }},
      {"models[0].name: ", [](C& c) { c.models[0].name = std::string(129, 'a'); }},
      {"models[0].name: ", [](C& c) { c.models[0].name = "."; }},
      {"models[0].name: ", [](C& c) { c.models[0].name = ".."; }},
      {"models[1].name: ", [](C& c) { c.models.push_back(c.models[0]); }},
      {"models[0].device: ", [](C& c) { c.models[0].device = "gpu"; }},
      {"models[0].cpus: ", [](C& c) { c.models[0].cpus = "all"; }},
      {"models[0].cpus: is for models on the CPU",
       [](C& c) {
         c.models[0].cpus = "0";
         c.models[0].device = "cuda:0";
       }},
      {"models[0].device: ", [](C& c) { c.models[0].device = "cuda:"; }},
      {"models[0].device: ", [](C& c) { c.models[0].device = "cuda:-1"; }},
      {"models[0].device: ", [](C& c) { c.models[0].device = "cuda: 1"; }},
      {"models[0].device: ", [](C& c) { c.models[0].device = "cuda:99999999999"; }},
      {"models[0].weight_format: ", [](C& c) { c.models[0].weight_format = "fp64"; }},
      {"models[0].weight_format: ", [](C& c) { c.models[0].weight_format = "fp16"; }},
      {"models[0].weight_format: ",
       [](C& c) {
         c.models[0].device = "cuda:0";
         c.models[0].weight_format = "int4";
       }},
      {"models[0].version: ", [](C& c) { c.models[0].version = "a b"; }},
      {"limits.default_max_tokens: ", [](C& c) { c.limits.max_max_tokens = 10; }},
      {"limits.max_message_bytes: ", [](C& c) { c.limits.max_prompt_bytes = 5 << 20; }},
      // The field cannot hold this value. Its lower 32 bits alone would be in the range.
      {"limits.write_stall_ms: ",
       [](C& c) { c.limits.write_stall = std::chrono::milliseconds((int64_t{1} << 32) + 1000); }},
      {"security.tls: ", [](C& c) { c.security.tls.cert_file = "c"; }},
      {"security.tls: ", [](C& c) { c.security.tls.key_file = "k"; }},
      {"security.tls.client_ca_file: ", [](C& c) { c.security.tls.client_ca_file = "a"; }},
      {"security.trusted_proxies[1]: ",
       [](C& c) {
         c.security.trusted_proxies = {"10.0.0.0/8", "10.0.0.0/33"};
       }},
      {"http.allow_origins[1]: ",
       [](C& c) {
         c.http.allow_origins = {"https://chat.example:8443", "https://chat.example/"};
       }},
      {"http.allow_origins[0]: ", [](C& c) { c.http.allow_origins = {"chat.example"}; }},
      {"http.allowed_hosts[2]: ",
       [](C& c) {
         c.http.allowed_hosts = {"*", "[fd00::1]", "chat.example:8080"};
       }},
      {"http.allowed_hosts[0]: ", [](C& c) { c.http.allowed_hosts = {"*.example"}; }},
      {"log.level: ", [](C& c) { c.log.level = "loud"; }},
      {"log.format: ", [](C& c) { c.log.format = "xml"; }},
      {"health.readiness: ", [](C& c) { c.health.readiness = "most"; }},
      {"states.key_files[1]: ",
       [](C& c) {
         c.states.key_files = {"a", ""};
       }},
      {"states.folder: needs states.key_files", [](C& c) { c.states.folder = "f"; }},
      {"states.folder: needs states.max_bytes",
       [](C& c) {
         c.states.folder = "f";
         c.states.key_files = {"a"};
         c.states.max_bytes = 0;
       }},
      {"states.redis.address: must be host:port", [](C& c) { WithRedis(c, "redis"); }},
      {"states.redis.address: must have no user and password",
       [](C& c) { WithRedis(c, "secret@redis:6379"); }},
      {"states.redis.address: must name a socket", [](C& c) { WithRedis(c, "unix:"); }},
      {"states.redis.address: must name a socket",
       [](C& c) { WithRedis(c, "unix:" + std::string(108, 's')); }},
      {"states.redis.address: excludes states.folder",
       [](C& c) {
         WithRedis(c);
         c.states.folder = "f";
       }},
      {"states.redis.address: needs states.key_files",
       [](C& c) {
         WithRedis(c);
         c.states.key_files.clear();
       }},
      {"states.redis.address: needs states.max_bytes",
       [](C& c) {
         WithRedis(c);
         c.states.max_bytes = 0;
       }},
      {"repository.versions[1]: ",
       [](C& c) {
         c.repository.versions = {1, 0};
       }},
      {"repository.control: must be one of", [](C& c) { c.repository.control = "all"; }},
      {"repository.control: \"admin\" needs security.clients_file",
       [](C& c) { c.repository.control = "admin"; }},
      {"repository.settings: ", [](C& c) { c.repository.settings.name = "m"; }},
      {"repository.settings: ", [](C& c) { c.repository.settings.checkpoint_dir = "m"; }},
      {"repository.settings: ", [](C& c) { c.repository.settings.version = "2"; }},
      {"repository.settings.slots: ", [](C& c) { c.repository.settings.slots = 0; }},
      {"states.redis.prefix: ", [](C& c) { c.states.redis.prefix = std::string(129, 'p'); }},
  };
  for (const auto& bad : cases) {
    ServerConfig config = Valid();
    bad.spoil(config);
    const absl::Status status = ValidateServerConfig(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.field));
  }
}

// The widest range of a field: fields that limit it have their lowest or highest value.
struct Range {
  int64_t low;
  int64_t high;
};

Range RangeOf(const FieldDescriptor* field) {
  const auto& options = field->options();
  const auto end = [&](const auto& sibling) {
    return RangeOf(field->containing_type()->FindFieldByName(options.GetExtension(sibling)));
  };
  Range range = {static_cast<int64_t>(options.GetExtension(pb::min)),
                 static_cast<int64_t>(options.GetExtension(pb::max))};
  if (options.HasExtension(pb::min_field)) range.low += end(pb::min_field).low;
  if (options.HasExtension(pb::max_field)) range.high = end(pb::max_field).high;
  return range;
}

TEST(ConfigValidationTest, EveryRangeHoldsItsEndsAndNothingBeyond) {
  pb::ServerConfig config = MessageOf(Valid());
  int ranges = 0;
  VisitFields(
      "", config, [&](const std::string& path, Message& message, const FieldDescriptor* field) {
        const auto& options = field->options();
        const bool bound = options.HasExtension(pb::max) || options.HasExtension(pb::max_field);
        if (!IsInteger(field) || field->is_repeated() || !bound) return;
        ++ranges;
        const std::unique_ptr<Message> before(message.New());
        before->CopyFrom(message);
        for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
          const FieldDescriptor* other = message.GetDescriptor()->field(f);
          const auto& its = other->options();
          const std::string& name = other->name();
          const bool below = name == options.GetExtension(pb::min_field);
          const bool above = name == options.GetExtension(pb::max_field);
          if (below || its.GetExtension(pb::max_field) == field->name()) {
            SetNumber(message, other, RangeOf(other).low);
          } else if (above || its.GetExtension(pb::min_field) == field->name()) {
            SetNumber(message, other, RangeOf(other).high);
          }
        }
        const auto [low, high] = RangeOf(field);
        for (const int64_t end : {low, high}) {
          SetNumber(message, field, end);
          EXPECT_EQ(CheckFields(config), absl::OkStatus()) << path << " " << end;
        }
        for (const int64_t beyond : {low - 1, high + 1}) {
          SetNumber(message, field, beyond);
          EXPECT_EQ(CheckFields(config).message(),
                    absl::StrCat(path, ": must be in [", low, ", ", high, "], got ", beyond));
        }
        message.CopyFrom(*before);
      });
  EXPECT_GT(ranges, 50);
}

TEST(ConfigValidationTest, AcceptsRedisAtAHostOrASocket) {
  for (const std::string& address : {std::string("redis.example:6379"), std::string("[::1]:6379"),
                                     std::string("unix:/r@1"), "unix:/" + std::string(106, 's')}) {
    ServerConfig config = Valid();
    WithRedis(config, address);
    config.states.redis.prefix = std::string(128, 'p');
    EXPECT_TRUE(ValidateServerConfig(config).ok()) << ValidateServerConfig(config);
  }
}

TEST(ConfigValidationTest, AcceptsIpv6AndNoMetrics) {
  ServerConfig config = Valid();
  config.listen_address = "[::1]:65535";
  config.metrics_address = "";
  EXPECT_TRUE(ValidateServerConfig(config).ok());
}

}  // namespace
}  // namespace aft::server
