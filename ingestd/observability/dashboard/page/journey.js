"use strict";
// The view of a journey.

addView("journey", { title: "Journey" });
