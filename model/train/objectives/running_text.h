#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/train/corpus.h"
#include "model/train/objective.h"

namespace aft {

// The common part of the objectives over running text: a step has `batch` segments of a corpus.
class RunningText : public Objective {
 public:
  std::string Describe() const override {
    return absl::StrCat(corpus().train_tokens(), " training tokens, ", corpus().held_out_tokens(),
                        " held out");
  }
  uint64_t DataHash() const override {
    uint64_t hash = 0;
    for (const Corpus::Text& text : corpus().texts) {
      hash = HashOf(text.tokens, hash ^ static_cast<uint64_t>(text.train_tokens));
    }
    return hash;
  }
  int64_t total_steps() const override {
    return (config().total_tokens + amount_per_step() - 1) / amount_per_step();
  }
  int64_t eval_every_steps() const override { return config().eval_every_steps; }
  int64_t amount_per_step() const override { return config().batch * config().segment; }

 protected:
  RunningText(TrainConfig run, Corpus texts) : config_(std::move(run)), corpus_(std::move(texts)) {}

  const TrainConfig& config() const { return config_; }
  const Corpus& corpus() const { return corpus_; }  // its address does not change

 private:
  const TrainConfig config_;
  const Corpus corpus_;
};

}  // namespace aft
