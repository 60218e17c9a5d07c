#include "server/config/config.h"

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/lib/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "re2/re2.h"
#include "server/config/loader.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ServerConfig Parse(const std::string& text) {
  const absl::StatusOr<ServerConfig> config = ParseServerConfig(text, "test", "/base");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ServerConfig();
}

ServerConfig Valid() { return Parse("models { path: 'm' }"); }

template <typename Field>
void Set(Field& field, int64_t value) {
  field = static_cast<Field>(value);
}

TEST(ConfigLoaderTest, AnEmptyFileIsAllDefaults) {
  const ServerConfig config = Parse("");
  EXPECT_EQ(config.listen_address, "127.0.0.1:8500");
  EXPECT_EQ(config.metrics_address, "127.0.0.1:8501");
  EXPECT_TRUE(config.models.empty());
  EXPECT_EQ(config.drain.grace.count(), 30'000);
  EXPECT_EQ(config.log.format, "logfmt");
}

// In one line.
std::string Effective(const ServerConfig& config) {
  return absl::StrJoin(
      absl::StrSplit(FormatEffectiveConfig(config), absl::ByAnyChar(" \n"), absl::SkipEmpty()),
      " ");
}

TEST(ConfigLoaderTest, ReadsAndPrintsEveryField) {
  const std::string text =
      "listen_address: \"0.0.0.0:1\" metrics_address: \"\" "
      "models { name: \"a\" path: \"/x/y\" weight_format: \"bf16\" slots: 3 max_step_tokens: 5 "
      "intra_op_threads: 2 version: \"v9\" "
      "batch { max_delay_us: 21 max_rows: 22 max_tokens: 23 } device: \"cuda:1\" "
      "parking_bytes: 24 cpus: \"0\" prefix_cache_bytes: 40 prefix_cache_interval_tokens: 41 } "
      "limits { max_queued_requests: 11 max_queued_tokens: 12 max_prompt_bytes: 13 "
      "max_prompt_tokens: 14 default_max_tokens: 15 max_max_tokens: 16 "
      "max_stream_buffer_bytes: 17 max_concurrent_streams: 18 max_message_bytes: 24 "
      "max_memory_bytes: 25 max_client_memory_bytes: 26 write_stall_ms: 27 max_request_ms: 28 "
      "max_texts: 42 max_watches: 50 max_client_watches: 51 max_infer_streams: 52 "
      "max_client_infer_streams: 53 } "
      "drain { lame_duck_ms: 19 grace_ms: 20 } log { level: \"debug\" format: \"json\" } "
      "security { tls { cert_file: \"/c\" key_file: \"/k\" client_ca_file: \"/a\" } "
      "clients_file: \"/t\" trusted_proxies: \"::1\" trusted_proxies: \"10.0.0.0/8\" "
      "reload_s: 29 reflection: false max_client_labels: 30 } "
      "health { readiness: \"any\" max_failed_steps: 31 step_timeout_ms: 32 liveness_grace_ms: 33 "
      "} "
      "scheduling { age_ms: 25 max_client_slots: 26 reserved_slots: 27 strict_quotas: true "
      "max_client_queued_requests: 28 max_queue_ms: 29 step_target_ms: 30 itl_target_ms: 41 } "
      "connections { max_age_ms: 34 max_age_grace_ms: 35 } "
      "states { max_bytes: 36 max_client_bytes: 37 default_ttl_ms: 38 max_ttl_ms: 39 "
      "key_files: \"/s\" key_files: \"/t\" folder: \"/f\" "
      "redis { address: \"unix:/r\" password_file: \"/p\" database: 40 prefix: \"q\" "
      "timeout_ms: 41 max_client_bytes: 42 } checkpoint_tokens: 43 } "
      "repository { folder: \"/m\" latest_versions: 44 versions: 45 versions: 46 control: "
      "\"anyone\" "
      "drain_ms: 47 settings { name: \"\" path: \"\" weight_format: \"fp16\" slots: 48 "
      "max_step_tokens: 49 intra_op_threads: 50 version: \"1\" "
      "batch { max_delay_us: 51 max_rows: 52 max_tokens: 53 } device: \"cuda:2\" parking_bytes: 54 "
      "cpus: \"\" prefix_cache_bytes: 55 prefix_cache_interval_tokens: 56 } }";
  const ServerConfig config = Parse(text);
  EXPECT_EQ(Effective(config), text);
  EXPECT_EQ(config.models.at(0).checkpoint_dir, "/x/y");
  EXPECT_EQ(config.models.at(0).slots, 3);
  EXPECT_EQ(config.limits.max_queued_requests, 11);
  EXPECT_EQ(config.drain.grace.count(), 20);
}

TEST(ConfigLoaderTest, ModelPathsAreRelativeToTheConfigFile) {
  EXPECT_EQ(Parse("models { path: '../zoo/austen/' }").models[0].checkpoint_dir, "/zoo/austen");
  EXPECT_EQ(Parse("models { path: '../zoo/austen/' }").models[0].name, "austen");
  EXPECT_EQ(Parse("models { path: '/abs/m' }").models[0].checkpoint_dir, "/abs/m");
}

TEST(ConfigLoaderTest, AModelIsCalledAsItsFolderWhereverThePathStarts) {
  const std::filesystem::path here = std::filesystem::current_path();
  EXPECT_EQ(DefaultModelConfig(".").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("./").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("..").name, here.parent_path().filename());
  EXPECT_EQ(DefaultModelConfig("a/..").name, here.filename());
  EXPECT_EQ(DefaultModelConfig("a/./b//").name, "b");
  EXPECT_EQ(DefaultModelConfig(".").checkpoint_dir, ".");
  EXPECT_EQ(DefaultModelConfig("/").name, "");  // must be given one
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

TEST(ConfigLoaderTest, AFileInAFolderGivesItsPathsThatFolder) {
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

TEST(ConfigDefaultsTest, TheSchemaDocumentsThoseInForce) {
  std::ifstream schema("proto/aft/config/v1/server_config.proto");
  ASSERT_TRUE(schema.good());
  const std::string in_force = FormatEffectiveConfig(Valid());
  const RE2 field(R"( *optional \w+ (\w+) = \d+;)");
  const RE2 documented(R"raw([Dd]efault ("[^"]*"|\d+|true|false))raw");
  std::string comment;
  int fields = 0;
  for (std::string line; std::getline(schema, line);) {
    std::string name;
    if (!RE2::FullMatch(line, field, &name)) {
      comment = line.find("//") != std::string::npos ? comment + line : "";
      continue;
    }
    std::string value;
    const bool has_default = RE2::PartialMatch(comment, documented, &value);
    EXPECT_EQ(has_default, name != "name" && name != "path") << name;
    EXPECT_THAT(in_force, HasSubstr(name + ": " + (has_default ? value + "\n" : "")));
    comment.clear();
    ++fields;
  }
  EXPECT_EQ(fields, 76);
}

TEST(ConfigDefaultsTest, TheExampleShowsThoseInForce) {
  const absl::StatusOr<ServerConfig> example = LoadServerConfig("deploy/config/server.textproto");
  ASSERT_TRUE(example.ok()) << example.status();
  ServerConfig defaults;
  defaults.models = {DefaultModelConfig(example->models.at(0).checkpoint_dir)};
  EXPECT_EQ(FormatEffectiveConfig(*example), FormatEffectiveConfig(defaults));
}

TEST(ConfigDefaultsTest, ClientsLookWhereTheServerListens) {
  EXPECT_EQ(ServerConfig().listen_address, client::kDefaultAddress);
}

// States rest in Redis.
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

TEST(ConfigValidationTest, ANameMayHaveAllOfItsCharactersAndLengths) {
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
  for (const char* format : {"stored", "fp32", "bf16", "fp16"}) {
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
         c.models[0].weight_format = "int8";
       }},
      {"models[0].version: ", [](C& c) { c.models[0].version = "a b"; }},
      {"limits.default_max_tokens: ", [](C& c) { c.limits.max_max_tokens = 10; }},
      {"limits.max_message_bytes: ", [](C& c) { c.limits.max_prompt_bytes = 5 << 20; }},
      {"security.tls: ", [](C& c) { c.security.tls.cert_file = "c"; }},
      {"security.tls: ", [](C& c) { c.security.tls.key_file = "k"; }},
      {"security.tls.client_ca_file: ", [](C& c) { c.security.tls.client_ca_file = "a"; }},
      {"security.trusted_proxies[1]: ",
       [](C& c) {
         c.security.trusted_proxies = {"10.0.0.0/8", "10.0.0.0/33"};
       }},
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

TEST(ConfigValidationTest, EveryRangeHoldsItsEndsAndNothingBeyond) {
  using C = ServerConfig;
  const auto model = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.models[0].*field, value); };
  };
  const auto limit = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.limits.*field, value); };
  };
  const auto drain = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.drain.*field, value); };
  };
  const auto scheduling = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.scheduling.*field, value); };
  };
  const auto health = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.health.*field, value); };
  };
  const auto connections = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.connections.*field, value); };
  };
  const auto states = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.states.*field, value); };
  };
  const auto redis = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.states.redis.*field, value); };
  };
  const auto repository = [](auto field) {
    return [=](C& c, int64_t value) { Set(c.repository.*field, value); };
  };
  const int64_t one = 1;
  const struct {
    const char* field;
    int64_t low;
    int64_t high;
    std::function<void(C&, int64_t)> set;
  } ranges[] = {
      {"models[0].slots", 1, 65'536, model(&ModelConfig::slots)},
      {"models[0].max_step_tokens", 2, 1 << 20, model(&ModelConfig::max_step_tokens)},
      {"models[0].intra_op_threads", 0, 1024, model(&ModelConfig::intra_op_threads)},
      {"models[0].batch.max_delay_us", 0, 1'000'000, model(&ModelConfig::max_batch_delay)},
      {"models[0].batch.max_rows", 1, 65'536, model(&ModelConfig::max_batch_rows)},
      {"models[0].batch.max_tokens", 1, 1 << 20, model(&ModelConfig::max_batch_tokens)},
      {"models[0].parking_bytes", 0, one << 40, model(&ModelConfig::parking_bytes)},
      {"models[0].prefix_cache_bytes", 0, one << 40, model(&ModelConfig::prefix_cache_bytes)},
      {"models[0].prefix_cache_interval_tokens", 0, 1 << 26,
       model(&ModelConfig::prefix_cache_interval_tokens)},
      {"scheduling.age_ms", 1, 3'600'000, scheduling(&SchedulingConfig::age)},
      {"scheduling.max_client_slots", 0, 65'536, scheduling(&SchedulingConfig::max_client_slots)},
      {"scheduling.reserved_slots", -1, 65'536, scheduling(&SchedulingConfig::reserved_slots)},
      {"scheduling.max_client_queued_requests", 0, 1'000'000,
       scheduling(&SchedulingConfig::max_client_queued_requests)},
      {"scheduling.max_queue_ms", 0, 86'400'000, scheduling(&SchedulingConfig::max_queue)},
      {"scheduling.step_target_ms", 0, 60'000, scheduling(&SchedulingConfig::step_target)},
      {"scheduling.itl_target_ms", 0, 60'000, scheduling(&SchedulingConfig::itl_target)},
      {"limits.max_queued_requests", 1, 1'000'000, limit(&LimitsConfig::max_queued_requests)},
      {"limits.max_prompt_bytes", 1, one << 29, limit(&LimitsConfig::max_prompt_bytes)},
      {"limits.max_prompt_tokens", 1, one << 26, limit(&LimitsConfig::max_prompt_tokens)},
      {"limits.max_texts", 1, 400, limit(&LimitsConfig::max_texts)},
      {"limits.max_queued_tokens", 1, one << 40, limit(&LimitsConfig::max_queued_tokens)},
      {"limits.max_max_tokens", 1, one << 30, limit(&LimitsConfig::max_max_tokens)},
      {"limits.default_max_tokens", 1, 1000, limit(&LimitsConfig::default_max_tokens)},
      {"limits.max_stream_buffer_bytes", 256, one << 30,
       limit(&LimitsConfig::max_stream_buffer_bytes)},
      {"limits.max_concurrent_streams", 1, 1'000'000, limit(&LimitsConfig::max_concurrent_streams)},
      {"limits.max_watches", 1, 65'536, limit(&LimitsConfig::max_watches)},
      {"limits.max_client_watches", 0, 65'536, limit(&LimitsConfig::max_client_watches)},
      {"limits.max_infer_streams", 0, 65'536, limit(&LimitsConfig::max_infer_streams)},
      {"limits.max_client_infer_streams", 0, 65'536,
       limit(&LimitsConfig::max_client_infer_streams)},
      {"limits.max_message_bytes", 1, (one << 31) - 1, limit(&LimitsConfig::max_message_bytes)},
      {"limits.max_memory_bytes", 0, one << 40, limit(&LimitsConfig::max_memory_bytes)},
      {"limits.max_client_memory_bytes", 0, one << 40,
       limit(&LimitsConfig::max_client_memory_bytes)},
      {"limits.write_stall_ms", 10, 3'600'000, limit(&LimitsConfig::write_stall)},
      {"limits.max_request_ms", 1, 604'800'000, limit(&LimitsConfig::max_request)},
      {"security.reload_s", 1, 86'400, [](C& c, int64_t value) { Set(c.security.reload, value); }},
      {"security.max_client_labels", 0, 1000,
       [](C& c, int64_t value) { Set(c.security.max_client_labels, value); }},
      {"drain.lame_duck_ms", 0, 3'600'000, drain(&DrainConfig::lame_duck)},
      {"drain.grace_ms", 0, 3'600'000, drain(&DrainConfig::grace)},
      {"health.max_failed_steps", 1, 1'000'000, health(&HealthConfig::max_failed_steps)},
      {"health.step_timeout_ms", 1, 3'600'000, health(&HealthConfig::step_timeout)},
      {"health.liveness_grace_ms", 0, 3'600'000, health(&HealthConfig::liveness_grace)},
      {"connections.max_age_ms", 0, 86'400'000, connections(&ConnectionConfig::max_age)},
      {"connections.max_age_grace_ms", 0, 86'400'000,
       connections(&ConnectionConfig::max_age_grace)},
      {"states.max_bytes", 0, one << 50, states(&StatesConfig::max_bytes)},
      {"states.max_client_bytes", 0, one << 50, states(&StatesConfig::max_client_bytes)},
      {"states.default_ttl_ms", 1, 1000, states(&StatesConfig::default_ttl)},
      {"states.max_ttl_ms", 1, 31'536'000'000, states(&StatesConfig::max_ttl)},
      {"states.redis.database", 0, 65'535, redis(&RedisConfig::database)},
      {"states.redis.timeout_ms", 1, 60'000, redis(&RedisConfig::timeout)},
      {"states.redis.max_client_bytes", 1, one << 50, redis(&RedisConfig::max_client_bytes)},
      {"repository.latest_versions", 0, 1000, repository(&RepositoryConfig::latest_versions)},
      {"repository.drain_ms", 0, 86'400'000, repository(&RepositoryConfig::drain)},
      {"states.checkpoint_tokens", 0, 1 << 30, states(&StatesConfig::checkpoint_tokens)},
  };
  for (const auto& range : ranges) {
    // Where a range ends at another field, that field is out of the way.
    ServerConfig config = Valid();
    config.models[0].slots = 1;
    config.models[0].max_step_tokens = config.models[0].max_batch_tokens = 1 << 20;
    config.models[0].max_batch_rows = 1;
    config.limits.max_prompt_tokens = config.limits.default_max_tokens = 1;
    config.limits.max_queued_tokens = one << 40;
    config.limits.max_max_tokens = 1000;
    config.limits.max_prompt_bytes = 1;
    config.limits.max_message_bytes = one << 30;
    config.states.default_ttl = std::chrono::milliseconds(1);
    config.states.max_ttl = std::chrono::milliseconds(1000);
    for (const int64_t end : {range.low, range.high}) {
      range.set(config, end);
      EXPECT_TRUE(ValidateServerConfig(config).ok()) << ValidateServerConfig(config);
    }
    for (const int64_t beyond : {range.low - 1, range.high + 1}) {
      range.set(config, beyond);
      EXPECT_EQ(ValidateServerConfig(config).message(),
                absl::StrCat(range.field, ": must be in [", range.low, ", ", range.high, "], got ",
                             beyond));
    }
  }
}

TEST(ConfigValidationTest, AcceptsRedisAtAHostOrASocket) {
  for (const std::string& address : {std::string("redis.example:6379"), std::string("[::1]:6379"),
                                     "unix:/" + std::string(106, 's')}) {
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
