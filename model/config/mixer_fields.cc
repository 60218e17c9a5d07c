#include "model/config/mixer_fields.h"

#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "model/config/json_fields.h"
#include "model/config/kinds.h"

namespace aft {
namespace {

constexpr int64_t kMaxWindow = int64_t{1} << 16;
constexpr int64_t kMaxBandRows = int64_t{1} << 20;
constexpr int64_t kMaxScoreWidth = int64_t{1} << 12;

constexpr Named<BiasForm> kBiasNames[] = {
    {BiasForm::kBand, "band"}, {BiasForm::kFull, "full"}, {BiasForm::kFactors, "factors"}};
constexpr Named<LengthPolicy> kPolicyNames[] = {{LengthPolicy::kError, "error"},
                                                {LengthPolicy::kClamp, "clamp"},
                                                {LengthPolicy::kZero, "zero"}};
constexpr Named<Number> kRingNames[] = {{Number::kFp32, NumberName(Number::kFp32)},
                                        {Number::kBf16, NumberName(Number::kBf16)}};

// The fields of "mixer" other than kind. KindSpec says which kind uses which field.
struct Field {
  const char* key;
  std::variant<int64_t MixerConfig::*, bool MixerConfig::*, float MixerConfig::*,
               BiasForm MixerConfig::*, LengthPolicy MixerConfig::*, Number MixerConfig::*>
      member;
  int64_t min = 0;
  int64_t max = 0;
};
constexpr Field kFields[] = {
    {"window", &MixerConfig::window, 0, kMaxWindow},
    {"band_rows", &MixerConfig::band_rows, 0, kMaxBandRows},
    {"prefix_block", &MixerConfig::prefix_block, 0, kMaxPositions},
    {"causal", &MixerConfig::causal},
    {"hidden", &MixerConfig::hidden, 0, kMaxWidth},
    {"heads", &MixerConfig::heads, 1, kMaxWidth},
    {"bias", &MixerConfig::bias},
    {"bias_rank", &MixerConfig::bias_rank, 0, kMaxWidth},
    {"length_policy", &MixerConfig::length_policy},
    {"ring", &MixerConfig::ring},
    {"reparameterized", &MixerConfig::reparameterized},
    {"std_eps", &MixerConfig::std_eps},
    {"unbiased_std", &MixerConfig::unbiased_std},
    {"grid", &MixerConfig::grid},
    {"block_size", &MixerConfig::block_size, 1, kMaxWindow},
    {"global_token", &MixerConfig::global_token},
    {"full_decode", &MixerConfig::full_decode},
    {"score_width", &MixerConfig::score_width, 1, kMaxScoreWidth},
    {"decay_rank", &MixerConfig::decay_rank, 1, kMaxWidth},
    {"rate_rank", &MixerConfig::rate_rank, 1, kMaxWidth},
    {"value_rank", &MixerConfig::value_rank, 1, kMaxWidth},
    {"gate_rank", &MixerConfig::gate_rank, 1, kMaxWidth},
    {"initial_state", &MixerConfig::initial_state},
};
// The fields that every kind uses.
constexpr absl::string_view kCommon[] = {"causal", "hidden"};

bool Requires(const MixerConfig& mixer, const Field& field) {
  return absl::c_linear_search(SpecOf(mixer.kind).required, field.key);
}

bool Uses(const MixerConfig& mixer, const Field& field) {
  return Requires(mixer, field) || absl::c_linear_search(kCommon, field.key) ||
         absl::c_linear_search(SpecOf(mixer.kind).optional, field.key);
}

class Reader {
 public:
  Reader(JsonFields& fields, MixerConfig* mixer) : fields_(fields), mixer_(mixer) {}

  void Read(const Field& field) {
    if (!Requires(*mixer_, field) && !fields_.Has(field.key)) return;
    std::visit([&](auto member) { Read(field, &(mixer_->*member)); }, field.member);
  }

 private:
  void Read(const Field& field, int64_t* out) {
    fields_.Integer(field.key, field.min, field.max, out);
  }
  void Read(const Field& field, bool* out) { fields_.Bool(field.key, out); }
  void Read(const Field& field, float* out) { fields_.Number(field.key, 0.0, 1.0, out); }
  void Read(const Field& field, BiasForm* out) { ReadEnum(fields_, field.key, kBiasNames, out); }
  void Read(const Field& field, LengthPolicy* out) {
    ReadEnum(fields_, field.key, kPolicyNames, out);
  }
  void Read(const Field& field, Number* out) { ReadEnum(fields_, field.key, kRingNames, out); }

  JsonFields& fields_;
  MixerConfig* mixer_;
};

nlohmann::ordered_json ToJson(int64_t value) { return value; }
nlohmann::ordered_json ToJson(bool value) { return value; }
nlohmann::ordered_json ToJson(float value) { return ShortestDouble(value); }
nlohmann::ordered_json ToJson(BiasForm value) { return NameOf(kBiasNames, value); }
nlohmann::ordered_json ToJson(LengthPolicy value) { return NameOf(kPolicyNames, value); }
nlohmann::ordered_json ToJson(Number value) { return NameOf(kRingNames, value); }

nlohmann::ordered_json ValueOf(const MixerConfig& mixer, const Field& field) {
  return std::visit([&](auto member) { return ToJson(mixer.*member); }, field.member);
}

}  // namespace

absl::Status ReadMixerConfig(const nlohmann::json& json, MixerConfig* mixer) {
  std::vector<absl::string_view> known = {"kind"};
  for (const Field& field : kFields) known.emplace_back(field.key);
  JsonFields fields(json, "mixer", known);
  std::vector<absl::string_view> kinds;
  for (const KindSpec& spec : AllKinds()) kinds.emplace_back(spec.name);
  std::string kind;
  fields.Name("kind", kinds, &kind);
  for (const KindSpec& spec : AllKinds()) {
    if (kind == spec.name) mixer->kind = spec.kind;
  }
  Reader reader(fields, mixer);
  for (const Field& field : kFields) reader.Read(field);
  return fields.status();
}

nlohmann::ordered_json WriteMixerConfig(const MixerConfig& mixer) {
  const MixerConfig defaults;
  nlohmann::ordered_json json;
  json["kind"] = MixerKindName(mixer.kind);
  for (const Field& field : kFields) {
    nlohmann::ordered_json value = ValueOf(mixer, field);
    if (Requires(mixer, field) || value != ValueOf(defaults, field)) {
      json[field.key] = std::move(value);
    }
  }
  return json;
}

absl::Status CheckUnusedFields(const MixerConfig& mixer) {
  const MixerConfig defaults;
  for (const Field& field : kFields) {
    if (Uses(mixer, field)) continue;
    const nlohmann::ordered_json value = ValueOf(mixer, field);
    const nlohmann::ordered_json unused = ValueOf(defaults, field);
    if (value == unused) continue;
    return KeyError(absl::StrCat("mixer.", field.key),
                    absl::StrCat("must be absent or ", DumpJson(unused), " for ",
                                 MixerKindName(mixer.kind), ", got ", DumpJson(value)));
  }
  return absl::OkStatus();
}

}  // namespace aft
