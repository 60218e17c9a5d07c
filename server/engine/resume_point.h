#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/api/sampling_params.h"

namespace aft::server {

// What a running stream leaves behind, so that another stream can continue from there.
struct ResumePoint {
  std::string snapshot;          // the state before the last of its tokens
  std::vector<TokenId> outputs;  // since the resume point before, or since the stream began
};

// Takes the resume points of one stream. Calls come from the engine thread and must not block.
class ResumePointSink {
 public:
  virtual ~ResumePointSink() = default;

  // Whether a resume point may come now. False: the one before is still in work, and this one is
  // left out.
  virtual bool Ready() = 0;
  // REQUIRES: Ready.
  virtual void OnResumePoint(ResumePoint point) = 0;
};

// How a stream survives its server.
struct Survival {
  // Its client can resume it, so a drain ends it instead of waiting for it.
  bool resumable = false;
  std::shared_ptr<ResumePointSink> sink{};  // null: it leaves nothing behind
  // The number of tokens that are read or generated between two resume points. 0: there is only the
  // one at a drain (Outcome::hand_over).
  int64_t interval = 0;
};

}  // namespace aft::server
