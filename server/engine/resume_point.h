#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/api/sampling_params.h"

namespace aft::server {

// What a stream under way leaves behind, so that another one can go on from there.
struct ResumePoint {
  std::string snapshot;          // before the last of its tokens
  std::vector<TokenId> outputs;  // since the one before, or since the stream began
};

// Takes the resume points of one stream. Calls come from the engine thread and must not block.
class ResumePointSink {
 public:
  virtual ~ResumePointSink() = default;

  // Whether one may come now. False: the one before is not done with, and this one is left out.
  virtual bool Ready() = 0;
  // REQUIRES: Ready.
  virtual void OnResumePoint(ResumePoint point) = 0;
};

// How a stream survives its server.
struct Survival {
  // Its client resumes it: a drain ends it, instead of waiting for it.
  bool resumable = false;
  std::shared_ptr<ResumePointSink> sink{};  // null: it leaves nothing behind
  // Tokens that are read or generated from one resume point to the next; 0: there is one at a drain
  // alone (Outcome::hand_over).
  int64_t interval = 0;
};

}  // namespace aft::server
