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

// Token `i` of the model's output: "abcdefgh" for the first sequence, "klmn" for the second one.
char TokenOf(uint32_t sequence, uint32_t i);
float ScoreOf(char token, size_t at);  // `at`: its position in the text
std::vector<std::string> TextsOf(const v1::ScoreRequest& request);
// The number of tokens of a text before its first score.
uint32_t UnscoredOf(const v1::ScoreRequest& request);

// One model for any number of servers. It does what a scenario says, and knows what a client must
// ask for next. Thread-safe.
class ScriptedModel {
 public:
  explicit ScriptedModel(const Scenario& scenario);

  Script Answer(const google::protobuf::Message& request, int server = 0);

  // The request of a call and the request that was expected, as text without Resume.state. `state`
  // is Resume.state, or its size if it is long.
  struct Asked {
    std::string got, wanted;
    std::string state;
    int server = 0;
  };
  std::vector<Asked> asked() const;
  // The sequence, and the number of tokens before, of each call that resumed a stream; sorted.
  std::vector<std::pair<uint32_t, uint32_t>> resumed() const;
  bool all_used() const;  // no call of the scenario is left
  int stalls(int server) const;

 private:
  struct Text {
    uint32_t scores = 0;
    bool finished = false;
  };

  bool Resumes() const;
  // Returns the next call of the scenario for one resumed sequence, or for all sequences (-1).
  Call TakeCall(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Generate(v1::GenerateRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Score(const v1::ScoreRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Script Encode(const v1::EncodeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The request of a client that has received all that was sent. Empty if nothing is missing.
  v1::GenerateRequest WantedOf(const v1::GenerateRequest& got, uint32_t sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::ScoreRequest WantedScores() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps what was sent. `alone`: the call is for only this one of several sequences.
  void Keep(const v1::GenerateResponse& said, uint32_t sequence, bool alone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const v1::ScoreResponse& said, Text& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Scenario scenario_;
  mutable Mutex mutex_;
  std::map<int64_t, std::deque<Call>> calls_ ABSL_GUARDED_BY(mutex_);  // yet to come
  std::vector<Asked> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint32_t, uint32_t>> resumed_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> stalls_ ABSL_GUARDED_BY(mutex_);

  // What has been sent so far.
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;                       // the first sequence's
  std::map<uint32_t, v1::Resume> outputs_ ABSL_GUARDED_BY(mutex_);  // by sequence
  std::set<uint32_t> finished_ ABSL_GUARDED_BY(mutex_);             // sequences
  v1::ScoreResume scores_ ABSL_GUARDED_BY(mutex_);                  // for a single text
  std::vector<Text> texts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::client::contract
