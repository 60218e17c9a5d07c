#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "contract/scenario.pb.h"
#include "google/protobuf/message.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client::contract {

// Token `i` of a sequence that the model says: "abcdefgh" of the first, "klmn" of the second.
char TokenOf(uint32_t sequence, uint32_t i);
float ScoreOf(char token, size_t at);  // in its text
std::vector<std::string> TextsOf(const v1::ScoreRequest& request);
// Tokens of a text before its first score.
uint32_t UnscoredOf(const v1::ScoreRequest& request);

// One model behind any number of servers, which does what a scenario says, and knows what clients
// must ask it next. Thread-safe.
class ScriptedModel {
 public:
  explicit ScriptedModel(const Scenario& scenario);

  Script Answer(const google::protobuf::Message& request, int server = 0);

  // What each call asked for, and what it had to ask for, as text; without Resume.state.
  struct Asked {
    std::string got, wanted;
    std::string state;
    int server = 0;
  };
  std::vector<Asked> asked() const;
  // The sequence and the tokens before, of each call that went on; sorted.
  std::vector<std::pair<uint32_t, uint32_t>> resumed() const;
  bool all_used() const;  // no call of the scenario is left
  int stalls(int server) const;

 private:
  struct Text {
    uint32_t scores = 0;
    bool finished = false;
  };

  bool Resumes() const;
  // The next call of the scenario for a sequence that goes on alone, or of all (-1).
  Call TakeCall(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Generate(v1::GenerateRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Score(const v1::ScoreRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Encode(const v1::EncodeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a client that has all that was said asks for; nothing where nothing is left.
  v1::GenerateRequest WantedOf(const v1::GenerateRequest& got, uint32_t sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::ScoreRequest WantedScores() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What was said. `alone`: in a call of this sequence alone, of several.
  void Keep(const v1::GenerateResponse& said, uint32_t sequence, bool alone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const v1::ScoreResponse& said, Text& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Scenario scenario_;
  mutable Mutex mutex_;
  std::map<int64_t, std::deque<Call>> calls_ ABSL_GUARDED_BY(mutex_);  // yet to come
  std::vector<Asked> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint32_t, uint32_t>> resumed_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> stalls_ ABSL_GUARDED_BY(mutex_);

  // What has been said so far.
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;                       // of the first sequence
  std::map<uint32_t, v1::Resume> outputs_ ABSL_GUARDED_BY(mutex_);  // of the sequences
  std::set<uint32_t> finished_ ABSL_GUARDED_BY(mutex_);             // of those
  v1::ScoreResume scores_ ABSL_GUARDED_BY(mutex_);                  // of a single text
  std::vector<Text> texts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::client::contract
