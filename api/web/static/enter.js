// Leads to the session that this browser has, if it has one: what opens it is in its addresses.
"use strict";

const place = localStorage.getItem("place");
if (place && location.pathname === `${place}/sign-in`) {
  localStorage.removeItem("place"); // it is over
} else if (place) {
  location.replace(place + document.getElementById("to").value);
}
