#ifndef AFT_CLIENT_AFTLOAD_REPORT_H_
#define AFT_CLIENT_AFTLOAD_REPORT_H_

#include <string>

#include "client/aftload/load.h"

namespace aft::client {

// A table for people.
std::string TextReport(const LoadOptions& options, const LoadReport& report);

// One JSON object on one line: options and figures, times in milliseconds.
std::string JsonReport(const LoadOptions& options, const LoadReport& report);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTLOAD_REPORT_H_
