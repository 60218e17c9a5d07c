#include "model/config/mixer_fields.h"

#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/config/json_fields.h"

namespace aft {
namespace {

// Caps keep every product of sizes (weights, state bytes, offsets) far below 2^63.
constexpr int64_t kMaxWidth = int64_t{1} << 16;
constexpr int64_t kMaxWindow = int64_t{1} << 16;
constexpr int64_t kMaxBandRows = int64_t{1} << 20;
constexpr int64_t kMaxScoreWidth = int64_t{1} << 12;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();

constexpr Named<MixerKind> kKindNames[] = {
    {MixerKind::kAftSimple, "aft_simple"},   {MixerKind::kAftLocal, "aft_local"},
    {MixerKind::kAftFull, "aft_full"},       {MixerKind::kAftConv, "aft_conv"},
    {MixerKind::kBlockLocal, "block_local"}, {MixerKind::kDotProduct, "dot_product"},
    {MixerKind::kCosine, "cosine"},          {MixerKind::kAdditive, "additive"},
    {MixerKind::kLocation, "location"},
};
static_assert(std::size(kKindNames) == kMixerKinds);
constexpr Named<BiasForm> kBiasNames[] = {
    {BiasForm::kBand, "band"}, {BiasForm::kFull, "full"}, {BiasForm::kFactors, "factors"}};
constexpr Named<LengthPolicy> kPolicyNames[] = {{LengthPolicy::kError, "error"},
                                                {LengthPolicy::kClamp, "clamp"},
                                                {LengthPolicy::kZero, "zero"}};
constexpr Named<Number> kRingNames[] = {{Number::kFp32, NumberName(Number::kFp32)},
                                        {Number::kBf16, NumberName(Number::kBf16)}};

// A set of kinds.
constexpr uint32_t Bit(MixerKind kind) { return 1U << static_cast<int>(kind); }
constexpr uint32_t kNoKind = 0;
constexpr uint32_t kAll = (1U << kMixerKinds) - 1;
constexpr uint32_t kSimple = Bit(MixerKind::kAftSimple);
constexpr uint32_t kLocal = Bit(MixerKind::kAftLocal);
constexpr uint32_t kFull = Bit(MixerKind::kAftFull);
constexpr uint32_t kConv = Bit(MixerKind::kAftConv);
constexpr uint32_t kBlock = Bit(MixerKind::kBlockLocal);
constexpr uint32_t kAdditive = Bit(MixerKind::kAdditive);
constexpr uint32_t kLocation = Bit(MixerKind::kLocation);
constexpr uint32_t kHeads =
    kConv | kBlock | kAdditive | Bit(MixerKind::kDotProduct) | Bit(MixerKind::kCosine);

struct Field {
  const char* key;
  std::variant<int64_t MixerConfig::*, bool MixerConfig::*, float MixerConfig::*,
               BiasForm MixerConfig::*, LengthPolicy MixerConfig::*, Number MixerConfig::*>
      member;
  uint32_t used_by;
  uint32_t required_by = kNoKind;
  int64_t min = 0;
  int64_t max = 0;
};
constexpr Field kFields[] = {
    {"window", &MixerConfig::window, kLocal | kConv, kLocal | kConv, 0, kMaxWindow},
    {"band_rows", &MixerConfig::band_rows, kLocal | kFull | kLocation, kFull | kLocation, 0,
     kMaxBandRows},
    {"prefix_block", &MixerConfig::prefix_block, kSimple | kLocal, kNoKind, 0, kMaxPositions},
    {"causal", &MixerConfig::causal, kAll},
    {"hidden", &MixerConfig::hidden, kAll, kNoKind, 0, kMaxWidth},
    {"heads", &MixerConfig::heads, kHeads, kNoKind, 1, kMaxWidth},
    {"bias", &MixerConfig::bias, kLocal | kFull, kFull},
    {"bias_rank", &MixerConfig::bias_rank, kLocal | kFull, kNoKind, 0, kMaxWidth},
    {"length_policy", &MixerConfig::length_policy, kLocal | kFull},
    {"ring", &MixerConfig::ring, kLocal | kFull | kConv},
    {"reparameterized", &MixerConfig::reparameterized, kConv},
    {"std_eps", &MixerConfig::std_eps, kConv},
    {"unbiased_std", &MixerConfig::unbiased_std, kConv},
    {"grid", &MixerConfig::grid, kConv},
    {"block_size", &MixerConfig::block_size, kBlock, kBlock, 1, kMaxWindow},
    {"global_token", &MixerConfig::global_token, kBlock},
    {"full_decode", &MixerConfig::full_decode, kBlock},
    {"score_width", &MixerConfig::score_width, kAdditive, kAdditive, 1, kMaxScoreWidth},
};

class Reader {
 public:
  Reader(JsonFields& fields, MixerConfig* mixer) : fields_(fields), mixer_(mixer) {}

  void Read(const Field& field) {
    const bool required = (field.required_by & Bit(mixer_->kind)) != 0;
    if (!required && !fields_.Has(field.key)) return;
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

const char* MixerKindName(MixerKind kind) { return NameOf(kKindNames, kind); }

absl::Status ReadMixerConfig(const nlohmann::json& json, MixerConfig* mixer) {
  std::vector<absl::string_view> known = {"kind"};
  for (const Field& field : kFields) known.emplace_back(field.key);
  JsonFields fields(json, "mixer", known);
  ReadEnum(fields, "kind", kKindNames, &mixer->kind);
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
    if ((field.required_by & Bit(mixer.kind)) != 0 || value != ValueOf(defaults, field)) {
      json[field.key] = std::move(value);
    }
  }
  return json;
}

absl::Status CheckUnusedFields(const MixerConfig& mixer) {
  const MixerConfig defaults;
  for (const Field& field : kFields) {
    if ((field.used_by & Bit(mixer.kind)) != 0) continue;
    const nlohmann::ordered_json value = ValueOf(mixer, field);
    const nlohmann::ordered_json unused = ValueOf(defaults, field);
    if (value == unused) continue;
    return KeyError(absl::StrCat("mixer.", field.key),
                    absl::StrCat("must be absent or ", unused.dump(), " for ",
                                 MixerKindName(mixer.kind), ", got ", value.dump()));
  }
  return absl::OkStatus();
}

}  // namespace aft
