#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/generation_options.pb.h"
#include "aft/v1/inference.pb.h"
#include "google/protobuf/message.h"

// The options of a generation, as aft/v1/generation_options.proto describes them. Pure functions.
namespace aft::server {

struct OptionRule {
  const v1::GenerationOption* about;
  const google::protobuf::FieldDescriptor* part;   // of GenerateRequest; null: the request itself
  const google::protobuf::FieldDescriptor* field;  // in the part
  double low, high;                                // if it has a range
};

// Returns the rules in the order of the descriptions. They live as long as the program.
const std::vector<OptionRule>& OptionRules();

// Finds the option by one of its names, e.g. FindOption(&v1::GenerationOption::oip_name, "stop").
// Returns null if there is none.
using OptionName = const std::string& (v1::GenerationOption::*)() const;
const OptionRule* FindOption(OptionName name, absl::string_view value);

// The part of a request that has the option's field.
google::protobuf::Message& PartOf(const OptionRule& rule, v1::GenerateRequest& request);

// The number as the client wrote it, if that fits its type: 0.7, not 0.699999988. These are the
// fewest digits from which T is read back unchanged.
template <typename T>
std::string AsWritten(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

// Checks the number of entries of a list or map. `path`: the beginning of the error.
absl::Status CheckEntries(const OptionRule& rule, absl::string_view path, size_t entries);
// Checks each number, list and map of `part` (SamplingOptions, StopOptions, OutputOptions) against
// its rule, but not the values in a map. Errors begin with the path.
absl::Status CheckOptions(const google::protobuf::Message& part);
// Checks one value of a map option.
absl::Status CheckMapped(absl::string_view option, absl::string_view path, float value);

}  // namespace aft::server
