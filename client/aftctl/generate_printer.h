#ifndef AFT_CLIENT_AFTCTL_GENERATE_PRINTER_H_
#define AFT_CLIENT_AFTCTL_GENERATE_PRINTER_H_

#include <string>

#include "aft/v1/inference.pb.h"
#include "client/lib/aft_client.h"
#include "client/tool/output.h"

namespace aft::client {

// Shows one generation: the text (or, as JSON, every event) on standard output as it comes, what
// ended it on standard error. Not thread-safe.
class GeneratePrinter {
 public:
  GeneratePrinter(Output& output, bool json) : output_(output), json_(json) {}

  // False when the output's reader went away.
  bool OnEvent(const v1::GenerateResponse& event);

  void OnFinished(const GenerateResult& result);

  // What follows starts on a line of its own.
  void EndLine();

 private:
  Output& output_;
  const bool json_;
  bool in_line_ = false;
};

// "limit stop.max_tokens=64 | 64 tokens | first token after 12.3 ms | 512.0 tokens/s | seed 7".
std::string Summary(const GenerateResult& result);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_GENERATE_PRINTER_H_
