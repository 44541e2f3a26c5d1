"use strict";
// The view of live events.

addView("events", { title: "Live events" });
