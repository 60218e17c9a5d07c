#include "model/train/examples.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/config/json_fields.h"
#include "model/train/objective.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

// The strings of one line, in the order of `keys`. The line must have these keys and no others.
absl::StatusOr<std::vector<std::string>> ReadLine(const std::string& line,
                                                  const std::vector<const char*>& keys) {
  AFT_ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(line, line.size()));
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  std::vector<std::string> values;
  for (const char* key : keys) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": must be a string"));
    }
    values.push_back(found->get<std::string>());
  }
  for (auto member = json.begin(); member != json.end(); ++member) {
    const std::string& key = member.key();
    if (std::none_of(keys.begin(), keys.end(),
                     [&key](const char* known) { return key == known; })) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": unknown key"));
    }
  }
  return values;
}

struct Example {
  std::vector<std::string> values = {};
  std::string place = {};  // for messages
};

absl::StatusOr<std::vector<Example>> ReadFiles(const std::vector<std::string>& paths,
                                               const std::vector<const char*>& keys) {
  std::vector<Example> examples;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      Example example{.place = absl::StrCat(path, ": line ", ++number)};
      AFT_ASSIGN_OR_RETURN(example.values, InFile(example.place, ReadLine(line, keys)));
      examples.push_back(std::move(example));
    }
    // A folder can be opened, and then no line of it can be read.
    if (file.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  return examples;
}

absl::Status Add(const TrainConfig& config, const Example& example, const Tokenizer& tokenizer,
                 TextExamples* to) {
  const bool labels = config.objective == ObjectiveKind::kLabels;
  for (size_t i = labels ? 1 : 0; i < example.values.size(); ++i) {
    AFT_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                         InFile(example.place, tokenizer.Encode(example.values[i])));
    if (tokens.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(example.place, ": a text has no tokens"));
    }
    to->texts.push_back(std::move(tokens));
  }
  if (!labels) return absl::OkStatus();
  AFT_ASSIGN_OR_RETURN(to->classes.emplace_back(),
                       InFile(example.place, FindLabel(config.network, example.values[0])));
  return absl::OkStatus();
}

}  // namespace

uint64_t ExampleSplit::Hash() const {
  uint64_t hash = 0;
  for (const TextExamples* part : {&train, &held_out}) {
    hash = HashOf(part->classes, hash ^ part->texts.size());
    for (const std::vector<int32_t>& text : part->texts) hash = HashOf(text, hash);
  }
  return hash;
}

absl::StatusOr<int64_t> FindLabel(const NetworkConfig& network, absl::string_view label) {
  const std::vector<std::string>& labels = network.labels;
  const auto found = std::find(labels.begin(), labels.end(), label);
  if (found != labels.end()) return found - labels.begin();
  return absl::InvalidArgumentError(absl::StrCat("network.labels has no \"", label, "\""));
}

absl::StatusOr<ExampleSplit> ReadExamples(const TrainConfig& config, TokenizerSource tokenizer) {
  const bool labels = config.objective == ObjectiveKind::kLabels;
  const std::vector<const char*> keys =
      labels ? std::vector<const char*>{"label", "text"} : std::vector<const char*>{"a", "b"};
  AFT_ASSIGN_OR_RETURN(const std::vector<Example> examples, ReadFiles(config.examples, keys));
  const auto is_held_out = [&config](size_t i) {
    const auto held_out = [&config](size_t count) {
      return static_cast<int64_t>(config.held_out * static_cast<double>(count));
    };
    return held_out(i + 1) > held_out(i);
  };
  std::vector<absl::string_view> training_texts;
  for (size_t i = 0; i < examples.size(); ++i) {
    if (is_held_out(i)) continue;
    const std::vector<std::string>& values = examples[i].values;
    training_texts.insert(training_texts.end(), values.begin() + (labels ? 1 : 0), values.end());
  }
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> made, tokenizer(training_texts));
  ExampleSplit split;
  for (size_t i = 0; i < examples.size(); ++i) {
    AFT_RETURN_IF_ERROR(
        Add(config, examples[i], *made, is_held_out(i) ? &split.held_out : &split.train));
  }
  if (split.held_out.texts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(config.examples.front(), ": ", examples.size(),
                                                   " examples are too few to hold any out"));
  }
  return split;
}

TextBatch MakeTextBatch(const std::vector<absl::Span<const int32_t>>& texts) {
  size_t longest = 0, shortest = std::numeric_limits<size_t>::max();
  for (const absl::Span<const int32_t> text : texts) {
    longest = std::max(longest, text.size());
    shortest = std::min(shortest, text.size());
  }
  const auto rows = static_cast<int64_t>(texts.size());
  const auto columns = static_cast<int64_t>(longest);
  TextBatch batch{.ids = at::zeros({rows, columns}, at::kLong)};
  if (shortest < longest) {
    batch.mask = at::full({rows, columns}, -std::numeric_limits<float>::infinity());
  }
  for (int64_t row = 0; row < rows; ++row) {
    const absl::Span<const int32_t> text = texts[static_cast<size_t>(row)];
    std::copy(text.begin(), text.end(), batch.ids.select(0, row).mutable_data_ptr<int64_t>());
    if (!batch.mask.defined()) continue;
    batch.mask.select(0, row).slice(0, 0, static_cast<int64_t>(text.size())).zero_();
  }
  return batch;
}

std::vector<int32_t> CutText(const std::vector<int32_t>& text, const NetworkConfig& network,
                             size_t most, size_t skip) {
  if (text.size() <= most) return text;
  const std::vector<int32_t>& suffix = network.text_suffix;
  std::vector<int32_t> cut = network.text_prefix;
  const auto stretch =
      absl::MakeConstSpan(text).subspan(cut.size() + skip, most - cut.size() - suffix.size());
  cut.insert(cut.end(), stretch.begin(), stretch.end());
  cut.insert(cut.end(), suffix.begin(), suffix.end());
  return cut;
}

at::Tensor MeanOfTokens(const at::Tensor& values, const at::Tensor& mask) {
  if (!mask.defined()) return values.mean(1);
  const at::Tensor live = mask.eq(0).to(values.scalar_type()).unsqueeze(2);
  return (values * live).sum(1) / live.sum(1);
}

EpochOrder::EpochOrder(int64_t count, int64_t batch, uint64_t seed)
    : count_(count),
      batch_(std::min(count, batch)),
      seed_(seed),
      order_(static_cast<size_t>(count)) {}

std::vector<int64_t> EpochOrder::Get(int64_t step) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    // The seed is inverted, because the streams of the seed itself belong to the steps.
    std::mt19937_64 random = SeededBy(~seed_, static_cast<uint64_t>(epoch));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::shuffle(order_.begin(), order_.end(), random);
    epoch_ = epoch;
  }
  const auto begin = order_.begin() + step % steps_per_epoch() * batch_;
  return {begin, begin + batch_};
}

}  // namespace aft
