// The config file. A config that is formatted and read again is equal; errors name the place.
#include "server/config/config.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aft/config/v1/server_config.pb.h"
#include "base/check.h"
#include "server/config/loader.h"
#include "server/config/validation.h"
#include "tests/fuzz/field_path.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {

// A model takes 300 bytes in memory, and "models{}" is 8 bytes. The file comes from the operator.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 512};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::server;
  const absl::string_view text = fuzz::AsText(data, size);
  const absl::StatusOr<ServerConfig> config = ParseServerConfig(text, "file", "base");
  if (!config.ok()) {
    int line = 0;
    int column = 0;
    const std::string message(config.status().message());
    AFT_CHECK(std::sscanf(message.c_str(), "file:%d:%d: ", &line, &column) == 2);
    AFT_CHECK(line > 0 && column > 0 && absl::IsInvalidArgument(config.status()));
    return;
  }
  const std::string formatted = FormatEffectiveConfig(*config);
  const absl::StatusOr<ServerConfig> again = ParseServerConfig(formatted, "file", "");
  AFT_CHECK(again.ok());
  AFT_CHECK(FormatEffectiveConfig(*again) == formatted);

  const absl::Status valid = ValidateServerConfig(*config);
  AFT_CHECK(ValidateServerConfig(*again) == valid);
  if (!valid.ok()) {
    AFT_CHECK(fuzz::BeginsWithField(valid.message(), config::v1::ServerConfig::descriptor()));
    return;
  }
  // The rest of the server relies on these properties.
  const LimitsConfig& limits = config->limits;
  AFT_CHECK(!config->models.empty());
  for (const ModelConfig& model : config->models) {
    AFT_CHECK(!model.name.empty() && !model.checkpoint_dir.empty());
    AFT_CHECK(model.slots >= 1 && model.max_step_tokens > model.slots);
    AFT_CHECK(model.max_batch_rows >= 1 && model.max_batch_tokens >= model.max_batch_rows);
  }
  AFT_CHECK(limits.max_prompt_bytes >= 1 && limits.max_message_bytes >= limits.max_prompt_bytes);
  AFT_CHECK(limits.max_prompt_tokens >= 1 && limits.max_queued_tokens >= limits.max_prompt_tokens);
  AFT_CHECK(limits.default_max_tokens >= 1 && limits.max_max_tokens >= limits.default_max_tokens);
  AFT_CHECK(limits.write_stall.count() > 0 && limits.max_request.count() > 0);
  AFT_CHECK(limits.max_queued_requests >= 1 && limits.max_concurrent_streams >= 1);
  AFT_CHECK(config->drain.grace.count() >= 0 && config->drain.lame_duck.count() >= 0);
}
